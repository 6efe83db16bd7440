"""A real Ray on this machine, with a small object store: the same bits, deadlines, and workers that die."""

import os
import signal
from time import monotonic

import pytest

from hansa.links.ray import RayLink
from hansa.messages import Card, Describe, Lost, Train, Update
from hansa.run import run
from hansa.site import Site
from tests.conftest import same, weights


@pytest.mark.slow_fault
def test_a_run_over_ray_gives_the_same_bits_and_outlives_its_workers(federation, tmp_path):
    settings = federation(rounds=2)
    pool = run(settings, tmp_path / "pool", workers=0).folder
    cluster = run(settings, tmp_path / "ray", workers=2, over="ray").folder
    assert same(weights(pool / "model"), weights(cluster / "model"))
    site = Site(settings, cluster)
    model = site.start
    with RayLink(settings, cluster, 2, store=80 << 20) as link:
        cards = [(a.node, type(a.reply)) for a in link.ask(dict.fromkeys(("south", "north", "east"), Describe()), None)]
        assert cards == [("south", Card), ("north", Card), ("east", Card)], "in the order asked"
        reply = next(link.ask({"north": Train(1, model)}, monotonic() - 1)).reply
        assert isinstance(reply, Lost)
        assert "deadline" in reply.reason
        for process in desks():
            os.kill(process, signal.SIGKILL)
        answers = list(link.ask(dict.fromkeys(("north", "east"), Train(1, model)), None))
        assert [type(a.reply) for a in answers] == [Update, Update], "they are asked again, elsewhere"
        assert all(a.sent > 4 * model.layout.size for a in answers)


def desks() -> list[int]:
    import psutil

    return [p.pid for p in psutil.Process().children(recursive=True) if "Desk" in p.name() + " ".join(p.cmdline())]
