"""Every plug-in of examples/ in a real federation: in this process and in two workers, with a number it implies."""

import json
import re
from math import ceil
from pathlib import Path
from typing import Any

import pytest
import torch

from hansa.client.release_log import logged_releases
from hansa.client.state import StateFolder
from hansa.config.federation import Federation
from hansa.core.compression import UploadState
from hansa.core.encoding import BLOCK
from hansa.core.shared_state import SharedValue
from hansa.core.state import SHARED
from hansa.runs.directory import RunDirectory
from hansa.runs.ledger import Ledger
from hansa.runs.result import Result
from hansa.runs.run import run
from tests.conftest import WORDS, Build, same, weights, write_words

EXAMPLES = Path(__file__).parents[2] / "examples"
SILOS = ("north", "south", "east")
EPOCH = {"lr": 0.2, "batch": 8, "samples": {"epochs": 1}}  # silos of different sizes take different numbers of steps
LOGGED = {"updates": True}


def plugin(name: str) -> list[str]:
    return [str(EXAMPLES / f"{name}.py")]


def in_both(settings: Federation, tmp_path: Path) -> Result:
    """Run in this process and in two worker processes, which must give the same bits."""
    here, there = (run(settings, tmp_path / f"workers-{workers}", workers=workers) for workers in (0, 2))
    assert same(weights(here.folder / "model"), weights(there.folder / "model"))
    assert here.metrics == there.metrics
    return here


def received(folder: Path) -> int:
    """Bytes that the silos sent to the server."""
    ledger = Ledger(folder)
    [(total,)] = ledger.select("select sum(received) from traffic")
    ledger.close()
    return int(total)


@pytest.mark.parametrize("name", sorted(file.stem for file in EXAMPLES.glob("*.py")))
def test_every_example_is_one_file_that_imports_public_packages_alone(name: str) -> None:
    text = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    assert f"plugins: [examples/{name}.py]" in text.split('"""')[1]
    imports = [line.split()[1] for line in text.splitlines() if line.startswith(("from hansa", "import hansa"))]
    assert imports
    assert all(module.startswith(("hansa.core.", "hansa.tasks.", "hansa.data.")) for module in imports)


def test_fednova_divides_every_update_by_its_steps(federation: Build, tmp_path: Path) -> None:
    settings = federation(plugins=plugin("fednova"), method="fednova", rounds=1, train=EPOCH, release_log=LOGGED)
    folder = in_both(settings, tmp_path).folder
    releases = list(logged_releases(folder, "update"))
    samples = [len(one.notes["samples"]) for one in releases]
    steps = [ceil(n / 8) for n in samples]
    assert len(set(steps)) == 3
    effective = sum(n * k for n, k in zip(samples, steps, strict=True)) / sum(samples)
    start, after = weights(folder / "start"), weights(folder / "model")
    for name in releases[0].tensors:
        moves = [n / k * one.tensors[name] for n, k, one in zip(samples, steps, releases, strict=True)]
        expected = start[name] - effective * torch.stack(moves).sum(0) / sum(samples)
        torch.testing.assert_close(after[name], expected, rtol=1e-4, atol=1e-6)
    plain = run(federation(rounds=1, train=EPOCH), tmp_path / "fedavg", workers=0).folder
    assert not same(after, weights(plain / "model")), "the control"


def test_scaffold_keeps_state_at_the_server_and_at_the_silos(federation: Build, tmp_path: Path) -> None:
    """C = β·mean c_i, where all silos take part in every round."""
    settings = federation(plugins=plugin("scaffold"), method={"name": "my-scaffold", "strength": 0.5}, train=EPOCH)
    folder = in_both(settings, tmp_path).folder
    from hansa.config.plugins import load_plugins
    from hansa.core.method import METHODS
    from hansa.core.settings import Named

    load_plugins(plugin("scaffold"))
    kind = METHODS.build(Named(name="my-scaffold")).objective.state
    assert kind is not None
    own: list[Any] = [StateFolder(folder / "silos" / n / "memory").newest().get("objective", kind) for n in SILOS]
    server = RunDirectory(folder).restore(3, {SHARED: SharedValue}).slots[SHARED].value.flat
    mean = torch.stack([one.value.flat for one in own]).mean(0)
    torch.testing.assert_close(server, 0.5 * mean, rtol=1e-4, atol=1e-6)
    assert mean.abs().sum() > 0


def test_scaffold_with_full_strength_is_the_packages_own(federation: Build, tmp_path: Path) -> None:
    ours = run(federation(method="scaffold", train=EPOCH), tmp_path / "ours", workers=0).folder
    example = federation(plugins=plugin("scaffold"), method="my-scaffold", train=EPOCH)
    theirs = weights(run(example, tmp_path / "theirs", workers=0).folder / "model")
    for name, value in weights(ours / "model").items():
        torch.testing.assert_close(theirs[name], value, rtol=1e-4, atol=1e-5)


def test_signs_are_an_eighth_of_the_bytes_and_the_rest_is_remembered(federation: Build, tmp_path: Path) -> None:
    settings = federation(plugins=plugin("sign_compressor"), upload="sign", rounds=1, release_log=LOGGED)
    folder = in_both(settings, tmp_path).folder
    whole = run(federation(rounds=1), tmp_path / "whole", workers=0).folder
    assert received(folder) < 0.15 * received(whole)
    for release in logged_releases(folder, "update"):
        state = StateFolder(folder / "silos" / release.silo / "memory").newest().get("upload", UploadState)
        assert state is not None
        assert state.residual is not None
        for name, sent in release.tensors.items():
            update = sent.flatten() + state.residual[name].flatten()  # before it was compressed
            for block, signs in zip(torch.split(update, BLOCK), torch.split(sent.flatten(), BLOCK), strict=True):
                torch.testing.assert_close(signs, block.abs().mean() * block.sign(), rtol=1e-3, atol=1e-6)


def test_the_keyword_task_counts_what_the_data_contain(federation: Build, tmp_path: Path) -> None:
    silos, expected = {}, {}
    for name in SILOS:
        file = write_words(tmp_path / f"{name}.jsonl", WORDS[name], 40)
        texts = [json.loads(line)["text"] for line in file.read_text(encoding="utf-8").splitlines()]
        silos[name] = {"train": str(file), "test": str(file)}
        expected[name] = sum("fever" in text.split() for text in texts) / len(texts)
    assert 0 < expected["north"] < 1
    settings = federation(
        plugins=plugin("keyword_task"), task={"name": "keyword", "words": ["fever"]}, silos=silos, rounds=1
    )
    metrics = in_both(settings, tmp_path).metrics
    assert {name: one["prevalence"] for name, one in metrics.items()} == pytest.approx(expected)
    assert metrics["south"]["accuracy"] >= 0.0


def test_the_weighting_of_the_documentation_caps_samples(federation: Build, tmp_path: Path) -> None:
    """docs/papers.md, capped.py: with a cap of one sample all silos weigh the same."""
    page = (EXAMPLES.parent / "docs" / "papers.md").read_text(encoding="utf-8")
    [code] = re.findall(r"```python\n(# capped.py.*?)```", page, re.S)
    (tmp_path / "capped.py").write_text(code, encoding="utf-8")
    capped = federation(plugins=[str(tmp_path / "capped.py")], method={"name": "capped", "cap": 1}, rounds=1)
    uniform = federation(rounds=1, aggregate={"weights": "uniform"})
    models = [weights(run(s, tmp_path / n, workers=0).folder / "model") for n, s in (("a", capped), ("b", uniform))]
    assert same(*models)


def test_another_suffix_gives_the_same_model(federation: Build, tmp_path: Path) -> None:
    plain = federation(rounds=1, tokenizer={"kind": "bytes"})
    silos = {}
    for name, node in plain.silos.items():
        lines = Path(str(node.sources[0].train)).read_text(encoding="utf-8").splitlines()
        rows = [json.dumps(json.loads(line), indent=1, ensure_ascii=False) for line in lines]
        (tmp_path / f"{name}.jsonx").write_text("// a comment\n" + "\n".join(rows) + "\n", encoding="utf-8")
        silos[name] = {"train": str(tmp_path / f"{name}.jsonx")}
    with (tmp_path / "north.jsonx").open("a") as file:
        file.write('{"text": \n')
    data = {"max_length": 16, "valid": 0.0, "test": 0.2, "max_bad_rows": 0.1}
    settings = federation(plugins=plugin("jsonx_reader"), rounds=1, tokenizer={"kind": "bytes"}, silos=silos, data=data)
    folder = in_both(settings, tmp_path).folder
    assert same(weights(run(plain, tmp_path / "plain", workers=0).folder / "model"), weights(folder / "model"))
    ledger = Ledger(folder)
    problems = [text for (text,) in ledger.select("select text from events where text like '%north.jsonx%'")]
    ledger.close()
    assert any("not a JSON object" in text for text in problems), problems
