"""A real Ray on this machine, with a small object store: the same bits, deadlines, and workers that die."""

import os
import signal
from pathlib import Path
from time import monotonic

import pytest

from hansa.client.runtime import Runtime
from hansa.config import file as federation_file
from hansa.core.errors import UserError
from hansa.core.messages import Failure, Train, Update
from hansa.links.ray import RayLink
from hansa.runs.callbacks import RunEvents
from hansa.runs.directory import RunDirectory
from hansa.runs.ledger import Ledger
from hansa.runs.run import Run, run
from hansa.runs.start import begin, describe
from tests.cli.test_cli import ok
from tests.conftest import Build, same, weights


def test_an_unknown_link_is_reported(federation: Build, tmp_path: Path) -> None:
    (tmp_path / "fed.yaml").write_text(federation_file.dump(federation()))
    with pytest.raises(UserError, match="--link rya is not known; did you mean 'ray'"):
        ok("run", str(tmp_path / "fed.yaml"), "--link", "rya")


@pytest.mark.slow_fault
def test_a_run_over_ray_gives_the_same_bits_and_survives_its_workers(federation: Build, tmp_path: Path) -> None:
    settings = federation(rounds=2)
    here = run(settings, tmp_path / "here", workers=0).folder
    directory = RunDirectory.create(settings, tmp_path / "there", resume=False)
    ledger, callbacks = Ledger(directory.path), RunEvents()
    with RayLink(settings, directory.path, 2, store=80 << 20) as link:
        begin(settings, directory, link, ledger, callbacks)
        cards = describe(settings, directory, link, ledger, callbacks)
        there = Run(settings, directory, link, cards, ledger, callbacks).go().folder
        assert same(weights(here / "model"), weights(there / "model"))

        model = Runtime(settings, directory.path).start
        late = next(link.ask({"north": Train(1, model)}, monotonic() - 1)).reply
        assert isinstance(late, Failure)
        assert "deadline" in late.reason
        for process in actors():
            os.kill(process, signal.SIGKILL)
        answers = list(link.ask(dict.fromkeys(("south", "north", "east"), Train(1, model)), None))
        assert [a.node for a in answers] == ["south", "north", "east"], "in the order of the requests"
        assert [type(a.reply) for a in answers] == [Update] * 3, "the requests are repeated by other workers"
        assert all(a.sent > 4 * model.layout.size for a in answers)
    ledger.close()


def actors() -> list[int]:
    import psutil

    return [p.pid for p in psutil.Process().children(recursive=True) if "SiloActor" in p.name() + " ".join(p.cmdline())]
