"""Every mistake in a federation file: one sentence that says where, what was seen, and what to do."""

from pathlib import Path
from typing import Any

import pytest

from hansa.config.checks import check
from hansa.config.file import parse, read
from hansa.core.errors import ConfigError

GOOD = "silos:\n  fr: fr.jsonl\n  it: {train: it.jsonl, language: it}\n"


def refused(tmp_path: Path, text: str, *overrides: str) -> str:
    file = tmp_path / "federation.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        check(read(file, list(overrides)))
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (GOOD + "train: {lrr: 1}\n", "line 4: 'train.lrr' is not a setting; did you mean 'lr'?"),
        (GOOD + "rouds: 3\n", "'rouds' is not a setting; did you mean 'rounds'?"),
        (GOOD + "rounds: many\n", "rounds is 'many', but input should be a valid integer"),
        (GOOD + "rounds: -1\n", "rounds is -1, but input should be greater than or equal to 0"),
        (GOOD + "server: {optimizer: adamm}\n", "server.optimizer is 'adamm'; did you mean 'adam'?"),
        (GOOD + "method: fedprocks\n", "method 'fedprocks' is not known; did you mean 'fedprox'?"),
        (GOOD + "method: {name: fedprox, nu: 1}\n", "method.nu is not a setting of 'fedprox'; did you mean 'mu'?"),
        (GOOD + "method: {name: fedprox, mu: -1}\n", "method.mu is -1"),
        (GOOD + "method: {name: fedavg, mu: 1}\n", "fedavg has no settings"),
        (GOOD + "task: mln\n", "task 'mln' is not known; did you mean 'mlm'?"),
        (GOOD + "data: {valid: 0.5, test: 0.5}\n", "leave nothing to train on"),
        (GOOD + "participation: {count: 3}\n", "participation.count is 3, but there are 2 silos"),
        (GOOD + "aggregate: krum\n", "needs at least 5 silos, and 2 take part in a round"),
        (GOOD + "train: {samples: {floor: 5, epochs: 1}}\n", "choose one rule"),
        (GOOD + "model: {preset: tiny, path: x}\n", "a model is either a 'preset'"),
        (GOOD + "method: dga\naggregate: {weights: uniform}\n", "has weights of its own"),
        ("silos: {}\n", "a federation needs at least one silo"),
        ("rounds: 3\n", "'silos' is missing"),
        ("silos:\n  fr: {language: fr}\n", "a node needs data of its own ('train: FILE')"),
        ("silos:\n  fr: {trian: x.jsonl}\n", "did you mean 'train'?"),
        ("silos:\n  fr: a.jsonl\n  fr: b.jsonl\n", "line 3: 'fr' is given twice"),
        ("silos:\n  ../up: a.jsonl\n", "not usable as a folder name"),
        ("silos:\n  fr: {tain: a.jsonl}\n", "'silos.fr.tain' is not a setting; did you mean 'train'?"),
        ("silos:\n  west: {silos: {fr: a}}\n  fr: b\n", "silo name 'fr' is used twice"),
        ("silos:\n  west: {silos: {fr: a}, mixture: true, train: b}\n", "not both"),
        ("silos: [\n", "not valid YAML"),
        ("just text\n", "a federation file is a mapping"),
        (GOOD + "plugins: [nowhere.py]\n", "there is no such Python file"),
        (GOOD + "model: ./nowhere\n", "is not a Hugging Face model folder"),
    ],
)
def test_mistakes(tmp_path: Path, text: Any, expected: Any) -> None:
    assert expected in refused(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "old", "new"),
    [
        ("uses: [a.py]\n", "uses", "plugins"),
        ("secure: true\n", "secure", "secure_aggregation"),
        ("train: {at_once: 4}\n", "train.at_once", "micro_batch"),
        ("data: {broken: 0.1}\n", "data.broken", "max_bad_rows"),
        ("record: {offers: true}\n", "record", "release_log"),
        ("release_log: {offers: true}\n", "release_log.offers", "knowledge"),
        ("simulate: {usual: 2}\n", "simulate.usual", "default_delay"),
        ("tokenizer: {minimum: 2}\n", "tokenizer.minimum", "min_count"),
    ],
)
def test_a_setting_that_had_another_name_is_answered_with_the_new_one(
    tmp_path: Path, text: Any, old: Any, new: Any
) -> None:
    assert f"'{old}' is now called '{new}': rename it" in refused(tmp_path, GOOD + text)


def test_a_silos_setting_that_had_another_name(tmp_path: Path) -> None:
    text = "silos:\n  fr: {train: a.jsonl, privacy: {sigma: 1}}\n"
    assert "'silos.fr.privacy.sigma' is now called 'noise_multiplier'" in refused(tmp_path, text)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such file"):
        read(tmp_path / "no.yaml")


def test_missing_data_is_named(tmp_path: Path) -> None:
    from hansa.core.errors import DataError

    (tmp_path / "f.yaml").write_text(GOOD)
    with pytest.raises(DataError, match=r"silos.fr: .*fr.jsonl does not exist"):
        check(read(tmp_path / "f.yaml"))


def test_overrides_reach_any_depth(tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_text(GOOD + "method: fedprox\n")
    settings = read(tmp_path / "f.yaml", ["train.lr=3e-4", "method.mu=0.5", "server.optimizer=adam", "rounds=7"])
    assert settings.train.lr == 3e-4
    assert settings.method.settings == {"mu": 0.5}
    assert settings.server is not None
    assert settings.rounds == 7
    assert "write it as a.b=value" in refused(tmp_path, GOOD, "rounds")
    assert "is not a valid YAML value" in refused(tmp_path, GOOD, "rounds=[")
    short = GOOD + "model: tiny\nserver: {schedule: linear}\n"
    (tmp_path / "f.yaml").write_text(short)
    settings = read(tmp_path / "f.yaml", ["model.dropout=0.1", "server.schedule.decay=0.5"])
    assert (settings.model.preset, settings.model.dropout) == ("tiny", 0.1)
    assert settings.server is not None
    assert (settings.server.schedule.kind, settings.server.schedule.decay) == ("linear", 0.5)


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_text(GOOD)
    assert read(tmp_path / "f.yaml").silos["fr"].sources[0].train == str(tmp_path / "fr.jsonl")


def test_norway_is_not_false_and_small_numbers_are_numbers() -> None:
    import yaml

    from hansa.config.file import _StrictLoader

    assert yaml.load("{no: a, lr: 1e-4, on: true}", Loader=_StrictLoader) == {"no": "a", "lr": 1e-4, "on": True}


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    from hansa.config.file import dump

    settings = parse({"silos": {"fr": "a"}, "method": {"name": "fedprox", "mu": 0.3}, "server": {"optimizer": "yogi"}})
    (tmp_path / "f.yaml").write_text(dump(settings))
    back = read(tmp_path / "f.yaml")
    assert back.method == settings.method
    assert back.server == settings.server
