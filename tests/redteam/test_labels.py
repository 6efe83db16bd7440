"""Labels and words: a lying coordinator asks a deployed silo for names that the federation file does not list.

The silo is the one that `hansa join` starts. The control is a simulation of the same files, in which the silo belongs
to the user: there the names leave.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hansa.client.host import SiloHost
from hansa.client.runtime import Runtime
from hansa.config.checks import check_labels
from hansa.config.federation import Federation
from hansa.config.file import parse
from hansa.config.shared import for_members
from hansa.core.errors import ConfigError
from hansa.core.messages import CollectVocabulary, DataCard, DescribeData, Failure, Reply, Request, VocabularyCounts
from hansa.deploy.join import SiloService
from hansa.deploy.kit import Kit
from hansa.runs.run import run
from tests.deploy.conftest import make_kits

NAMES = ["quartzibelle", "zanzowit"]  # patients whose names stand in the field of the labels
Ask = Callable[[Request], Reply]


@pytest.fixture
def build(tmp_path: Path) -> Callable[..., Federation]:
    """Two silos with two frequent labels; the notes of a third person repeat a surname."""

    def made(**task: Any) -> Federation:
        silos = {}
        for name in ("north", "south"):
            rows = [{"text": f"fever and cough {i % 7}", "label": ("high", "low")[i % 2]} for i in range(80)]
            rows += [{"text": "cough borkelmund " + "borkelmund " * 9, "label": NAMES[0]}]
            rows += [{"text": "chills", "label": NAMES[1]}] * 19
            file = tmp_path / f"{name}.jsonl"
            file.write_text("".join(json.dumps(row) + "\n" for row in rows))
            silos[name] = {"train": str(file)}
        return parse(
            {
                "name": "labels",
                "task": {"name": "classify", **task},
                "tokenizer": {"size": 330, "min_count": 5},
                "data": {"max_length": 16, "valid": 0.0, "test": 0.0, "max_bad_rows": 0.9},
                "silos": silos,
                "rounds": 1,
                "train": {"lr": 0.1, "batch": 8, "samples": {"floor": 8}},
            }
        )

    return made


def deployed(federation: Federation, folder: Path) -> Ask:
    """The silo `north` as its agent opens it."""
    kits = make_kits(federation, folder / "kits")
    service = SiloService(Kit(kits / "north"), federation.silos["north"].sources, ())
    return service.open_run(folder / "run", for_members(federation))


def simulated(federation: Federation, folder: Path) -> Ask:
    return SiloHost(Runtime(federation, folder / "run")).answer("north")


def test_unlisted_labels_leave_a_simulated_silo_and_no_deployed_one(build: Any, tmp_path: Path) -> None:
    federation, request = build(), CollectVocabulary(5, 1)
    control = simulated(federation, tmp_path)(request)
    assert isinstance(control, VocabularyCounts)
    assert set(NAMES) <= set(control.labels)
    reply = deployed(federation, tmp_path)(request)
    assert isinstance(reply, Failure)
    assert "list them in task.labels" in reply.reason
    with pytest.raises(ConfigError, match=r"list them in task\.labels, or set task\.discover_labels: true"):
        check_labels(federation)


def test_discovered_labels_have_a_floor_that_the_coordinator_cannot_lower(build: Any, tmp_path: Path) -> None:
    federation = build(discover_labels=True)
    check_labels(federation)
    ask = deployed(federation, tmp_path)
    honest = ask(CollectVocabulary(5, 20))
    assert isinstance(honest, VocabularyCounts)
    assert honest.labels == ("high", "low")
    for floor in (1, 19, -1):
        assert isinstance(ask(CollectVocabulary(0, floor)), Failure)
    lower = deployed(build(discover_labels=True, min_label_rows=19), tmp_path / "lower")(CollectVocabulary(0, 19))
    assert isinstance(lower, VocabularyCounts)
    assert NAMES[1] in lower.labels, "the control: with a lower floor the name leaves"


def test_listed_labels_are_not_asked_for(build: Any, tmp_path: Path) -> None:
    federation = build(labels=["high", "low"])
    check_labels(federation)
    ask = deployed(federation, tmp_path)
    assert isinstance(ask(CollectVocabulary(0, 20)), Failure)
    with pytest.raises(ConfigError, match="exclude each other"):
        check_labels(build(labels=["high", "low"], discover_labels=True))


def test_words_are_counted_by_row_and_their_floor_is_the_files(build: Any, tmp_path: Path) -> None:
    ask = deployed(build(labels=["high", "low"]), tmp_path)
    reply = ask(CollectVocabulary(5))
    assert isinstance(reply, VocabularyCounts)
    assert "▁cough" in reply.pieces
    assert not any("borkelmund" in piece for piece in reply.pieces), "one row repeats it ten times"
    for floor in (1, 4, -1):
        assert isinstance(ask(CollectVocabulary(floor)), Failure)


@pytest.mark.parametrize("defended", [True, False])
def test_the_initial_model_cannot_ask_for_other_labels(
    build: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, defended: bool
) -> None:
    """A model with the class `quartzibelle` would count the rows that have this name as their label."""
    federation = build(labels=["high", "low"])
    outcome = run(federation, tmp_path / "run", workers=0)
    ask = deployed(federation, tmp_path / "deployed")
    start = tmp_path / "deployed" / "run" / "start"
    shutil.copytree(outcome.folder / "start", start)
    (start / "labels.json").write_text(json.dumps(["high", NAMES[0]]))
    if defended:
        with pytest.raises(ConfigError, match="not those that task"):
            ask(DescribeData())
        return
    monkeypatch.setattr(Runtime, "_check_labels", lambda self, labels: None)
    card = deployed(build(labels=["high", "low"]), tmp_path / "control")
    shutil.copytree(start, tmp_path / "control" / "run" / "start")
    told = card(DescribeData())
    assert isinstance(told, DataCard)
    assert told.samples() == 41, "the control: 40 rows are 'high', and one has the name"


def test_rows_with_other_labels_count_as_bad_rows_and_are_not_named(build: Any, tmp_path: Path) -> None:
    federation = build(labels=["high", "low"])
    outcome = run(federation, tmp_path / "run", workers=0)  # its folder has the model that the silos start from
    ask = deployed(federation, tmp_path / "deployed")
    start = tmp_path / "deployed" / "run" / "start"
    start.parent.mkdir(parents=True, exist_ok=True)
    start.symlink_to(outcome.folder / "start")
    card = ask(DescribeData())
    assert isinstance(card, DataCard)
    assert card.samples() == 80
    assert card.problems == ("train: 20 of 100 rows have a label that is not listed",)
    control = simulated(federation, outcome.folder.parent)(DescribeData())
    assert isinstance(control, DataCard)
    assert "north.jsonl:81" in " ".join(control.problems), "the control: at home the place is named"
    assert not any(name in " ".join(card.problems + control.problems) for name in NAMES)
