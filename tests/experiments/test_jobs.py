"""Jobs: what is finished is not repeated, what is stale can be, and every cell names the code that made it."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hansa.config.federation import Federation
from hansa.config.file import parse
from hansa.core.errors import RunFailed
from hansa.experiments.reproduce import Unfinished, sources, stamp
from hansa.experiments.reproduce.cells import Cell, Cells
from hansa.experiments.reproduce.jobs import Fact, Jobs, matrix, matrix_name
from hansa.runs.results import RunResults

ROUND = "hansa/core/round.py"
Build = Callable[..., Federation]
Do = Callable[[Jobs], Any]


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """One silo with a few texts; keyword arguments replace settings."""
    file = tmp_path / "silo.jsonl"
    file.write_text("".join(json.dumps({"text": f"a text with number {i} in it"}) + "\n" for i in range(40)))
    settings = {
        "model": "mini",
        "tokenizer": {"kind": "bytes"},
        "data": {"max_length": 32, "valid": 0.2, "test": 0.2},
        "silos": {"one": {"train": str(file), "language": "en"}},
        "rounds": 1,
        "train": {"batch": 4, "samples": {"floor": 4}},
        "evaluate": {"every": 1, "share": 1.0},
    }
    return lambda **changes: parse(settings | changes)


class Session:
    """Jobs that are started anew each time, with what they said."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.cells = folder, Cells(folder / "cells", "toy", "small")
        self.said: list[str] = []

    def one(self, settings: Federation, out: str = "out", facts: dict[str, Fact] | None = None, **how: bool) -> Cell:
        """The cell of one run, named ``a run``."""
        self.said.clear()
        with Jobs(self.folder / out, self.said.append, False, self.cells, **how) as jobs:
            jobs.start("a run", settings, facts=facts)
            return jobs.cell("a run")

    @property
    def run(self) -> Path:
        """The run directory."""
        [found] = (path for path in (self.folder / "out").glob("a-run*") if path.is_dir())
        return found


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session(tmp_path)


def age(folder: Path, commit: str = "0ld0ld0") -> None:
    """Make a finished run directory look as if it was made by other code."""
    made = stamp.read(folder)
    assert made is not None
    older = replace(made, commit=commit, files=made.files | {ROUND: "0" * 12})
    (folder / stamp.NAME).write_text(json.dumps(vars(older)))


def test_a_run_whose_cell_is_kept_is_not_repeated_without_its_directory(build: Build, session: Session) -> None:
    cell = session.one(build())
    assert session.said == ["a run: started", "a run: done"]
    assert session.one(build(), "elsewhere") == cell
    assert session.said == ["a run: finished before"]
    assert not list((session.folder / "elsewhere").glob("*"))


def test_finished_runs_nothing(build: Build, session: Session) -> None:
    with pytest.raises(Unfinished, match="'a run' of toy is not finished; leave --finished out"):
        session.one(build(), finished=True)
    assert not (session.folder / "out").exists()
    cell = session.one(build())
    assert session.one(build(), finished=True) == cell
    with pytest.raises(Unfinished, match="not everything that the tables need"):
        session.one(build(), "elsewhere", facts={"losses": rounds_of}, finished=True)


def test_a_stale_run_is_repeated_if_that_is_asked_for_and_its_cell_is_of_today(build: Build, session: Session) -> None:
    fresh = session.one(build())
    age(session.run)
    kept = json.loads((session.cells.folder / "sources" / f"{fresh.sources}.json").read_text())
    old = replace(fresh, commit="0ld0ld0", sources=sources.keep(kept | {ROUND: "0" * 12}, session.cells.folder))
    session.cells.keep(old)
    assert session.one(build()) == old, "without --again"
    again = session.one(build(), again=True)
    assert session.said == ["a run: started", "a run: done"]
    assert (again.commit, session.cells.changed(again)) == (sources.commit(), [])
    assert session.cells.all() == [again], "the old cell is replaced"
    assert session.one(build(), again=True) == again
    assert session.said == ["a run: finished before"]


def test_a_directory_of_older_code_never_gets_a_cell_of_today(build: Build, session: Session) -> None:
    session.one(build())
    age(session.run)
    session.cells.file("a run", 0).unlink()
    cell = session.one(build())
    assert session.said == ["a run: read", "a run: done"]
    assert cell.commit == "0ld0ld0"
    assert session.cells.changed(cell) == [ROUND]


def test_an_interrupted_run_has_the_commits_of_all_its_sessions(build: Build, session: Session) -> None:
    session.one(build())
    home, made = session.run, stamp.read(session.run)
    assert made is not None
    (home / stamp.NAME).unlink()  # as if it had been stopped before its end
    pending = home.parent / f"{home.name}.{stamp.NAME}"
    earlier = {"commit": "0ld0ld0", "date": "2026-01-01", "files": sources.loaded() | {ROUND: "0" * 12}}
    pending.write_text(json.dumps([earlier]))
    session.cells.file("a run", 0).unlink()
    cell = session.one(build())
    assert session.said[0] == "a run: resumed"
    assert cell.commit == f"0ld0ld0, {sources.commit()}"
    assert session.cells.changed(cell) == [ROUND]
    (home / stamp.NAME).unlink()
    session.cells.file("a run", 0).unlink()
    assert session.one(build()).commit == f"unknown, {sources.commit()}", "nobody noted its first session"


def test_changed_settings_have_a_directory_of_their_own(build: Build, session: Session) -> None:
    first, second = session.one(build()), session.one(build(train={"batch": 2, "samples": {"floor": 4}}))
    assert first.settings != second.settings
    assert len([path for path in (session.folder / "out").iterdir() if path.is_dir()]) == 2
    assert session.said == ["a run: started", "a run: done"]


def rounds_of(folder: Path) -> dict[str, list[float]]:
    return {"losses": [loss for _, loss in RunResults.read(folder).losses]}


def test_what_tables_need_is_a_fact_of_the_cell_and_is_read_once(build: Build, session: Session) -> None:
    assert "losses" not in session.one(build()).facts
    cell = session.one(build(), facts={"losses": rounds_of} | matrix(0.5))
    assert session.said == ["a run: read", "a run: done"], "the directory is there: nothing is run again"
    assert cell.facts["losses"]["losses"][0] > 0
    assert cell.facts[matrix_name(0.5)]["shared"]["one"]["loss"] > 0
    shutil.rmtree(session.folder / "out")
    assert session.one(build(), facts={"losses": rounds_of}).facts == cell.facts
    session.one(build(), facts={"other": rounds_of})
    assert session.said == ["a run: started", "a run: done"], "a cell without a fact that is needed is not enough"


def test_a_run_that_diverged_leaves_a_cell_that_says_so(build: Build, session: Session) -> None:
    broken = build(train={"optimizer": "sgd", "lr": 1e38, "batch": 4, "samples": {"floor": 8}}, rounds=2)
    cell = session.one(broken, facts={"losses": rounds_of})
    assert session.said == ["a run: started", "a run: diverged"]
    assert "training loss is nan" in cell.diverged
    assert cell.scores == {}
    assert session.one(broken, "elsewhere", facts={"losses": rounds_of}) == cell
    assert session.said == ["a run: finished before"]
    with Jobs(session.folder / "out", print, False, session.cells) as jobs:
        jobs.start("a run", broken)
        with pytest.raises(RunFailed, match="training loss is nan"):
            jobs.result("a run")


def test_a_run_that_failed_for_another_reason_leaves_no_cell(build: Build, session: Session) -> None:
    settings = build()
    (session.folder / "silo.jsonl").write_text("")
    with pytest.raises(Exception, match="silo"):
        session.one(settings)
    assert session.cells.all() == []


def followed(session: Session, build: Build, out: str, rate: float = 0.1, again: bool = False) -> dict[str, str]:
    """A first run, and one that starts from its model; what was said of each."""
    session.said.clear()
    with Jobs(session.folder / out, session.said.append, False, session.cells, again=again) as jobs:
        jobs.start("first", build())
        later = build(model={"path": jobs.model("first")}, tokenizer={}, train={"lr": rate, "batch": 4})
        jobs.start("later", later)
        jobs.cell("later")
    return dict(reversed([line.split(": ") for line in session.said if "done" not in line]))


def test_a_follow_up_needs_the_earlier_model_only_if_it_is_not_finished(build: Build, session: Session) -> None:
    assert followed(session, build, "out") == {"first": "started", "later": "started"}
    assert followed(session, build, "elsewhere") == {"first": "finished before", "later": "finished before"}
    assert not list((session.folder / "elsewhere").glob("*")), "nothing was run"
    said = followed(session, build, "elsewhere", rate=0.2)
    assert said == {"first": "finished before", "later": "started"}
    assert session.said == ["first: finished before", "first: started", "first: done", "later: started", "later: done"]


def test_a_stale_follow_up_is_repeated_also_if_the_earlier_model_is_gone(build: Build, session: Session) -> None:
    followed(session, build, "out")
    [first], [later] = ((session.folder / "out").glob(f"{name}.0-*") for name in ("first", "later"))
    before = session.cells.find("later", 0)
    assert before is not None
    age(later)
    session.cells.file("later", 0).unlink()
    shutil.rmtree(first)
    followed(session, build, "out", again=True)
    assert session.said == ["first: finished before", "first: started", "first: done", "later: started", "later: done"]
    after = session.cells.find("later", 0)
    assert after is not None
    assert (after.commit, after.scores) == (sources.commit(), before.scores), "the same start, so the same scores"


def test_nobody_starts_from_files_of_a_run_that_is_made_again(build: Build, session: Session) -> None:
    session.one(build())
    age(session.run)
    (session.run / "start" / "old").write_text("")
    session.cells.file("a run", 0).unlink()
    with Jobs(session.folder / "out", print, False, session.cells, again=True) as jobs:
        jobs.start("a run", build())
        start = Path(jobs.start_folder("a run"))
    assert start.is_dir()
    assert not (start / "old").exists()


@pytest.mark.docs
def test_processes_side_by_side_make_the_same_cells(build: Build, session: Session) -> None:
    with Jobs(session.folder / "out", session.said.append, True, session.cells) as jobs:
        jobs.start("pooled", build(), facts={"losses": rounds_of})
        jobs.start("apart", build(), workers=1)
        pooled, apart = jobs.cell("pooled"), jobs.cell("apart")
    assert pooled.scores == apart.scores
    assert pooled.facts["model"] == apart.facts["model"]
    assert pooled.commit == apart.commit == sources.head()
    assert session.cells.changed(pooled) == session.cells.changed(apart) == []


def test_arms_with_similar_names_have_files_of_their_own(build: Build, session: Session) -> None:
    cell = replace(session.one(build()), arm="weights N")
    session.cells.keep(cell)
    assert session.cells.find("weights √N", 0) is None
    assert session.cells.find("weights (N)", 0) is None, "a file of that name, but of another arm"
    assert session.cells.find("weights N", 0) == cell
