"""Encoded downlink: silos hold what they were sent, the server keeps the exact model, and nothing is lost for good."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from hansa.client.host import SiloHost
from hansa.client.runtime import Runtime
from hansa.compressors.basic import Quantize, Ternary
from hansa.config.method import build_method
from hansa.core.compression import Compressor
from hansa.core.encoded_downlink import SentModel, advanced, encode_difference
from hansa.core.encoding import EncodedUpdate
from hansa.core.errors import ConfigError
from hansa.core.messages import Failure, Train, Update
from hansa.core.tensors import Layout, Tensors
from hansa.links.local import LocalLink
from hansa.privacy.secure_aggregation.announcement import model_digest
from hansa.privacy.secure_aggregation.client import MaskingClient
from hansa.runs.ledger import Ledger
from hansa.runs.run import run
from tests.conftest import Build, same, weights

LAYOUT = Layout(("a", "b"), ((40, 30), (7,)))
SETTINGS: dict[str, Any] = {"task": "classify", "model": "mini", "evaluate": {"every": 9, "share": 0.1}, "rounds": 4}
STEPS = {"lr": 0.2, "batch": 8, "samples": {"floor": 16}}


@pytest.mark.parametrize("compressor", [Quantize(7), Ternary()])
def test_what_an_encoding_loses_is_sent_later(compressor: Compressor) -> None:
    """The model stands still after it moved once: what silos hold comes ever closer to it."""
    torch.manual_seed(0)
    exact = Tensors(LAYOUT, torch.randn(LAYOUT.size))
    sent = SentModel(Tensors.zeros(LAYOUT), 1, ("x",), LAYOUT.names)
    apart = [float(exact.flat.norm())]
    for number in range(2, 9):
        difference, held = encode_difference([compressor], exact, sent, number)
        assert advanced(sent.model, difference).same_bits(held), "server and silo compute the same"
        sent = SentModel(held, number, ("x",), LAYOUT.names)
        apart.append(float((exact.flat - held.flat).norm()))
    assert all(later < 0.95 * earlier for earlier, later in pairwise(apart))


def test_only_tensors_that_moved_are_sent() -> None:
    exact, sent = Tensors(LAYOUT, torch.ones(LAYOUT.size)), SentModel(Tensors.zeros(LAYOUT), 1, (), ("b",))
    difference, held = encode_difference([Quantize(7)], exact, sent, 2)
    assert difference.names == ("b",)
    assert float(held["a"].abs().max()) == 0.0


def traffic(folder: Path) -> list[tuple[int, int]]:
    ledger = Ledger(folder)
    try:
        rows = ledger.select("select round, sum(sent), sum(received) from traffic group by round order by round")
        return [(int(down), int(up)) for _, down, up in rows]
    finally:
        ledger.close()


def test_four_bits_down_are_an_eighth_of_the_bytes_and_any_number_of_workers_gives_the_same(
    federation: Build, tmp_path: Path
) -> None:
    settings = federation(**SETTINGS, train=STEPS, download="int4", upload="int4")
    run(settings, tmp_path / "one", workers=0)
    run(settings, tmp_path / "two", workers=2)
    run(federation(**SETTINGS, train=STEPS, upload="int4"), tmp_path / "whole", workers=0)
    assert same(weights(tmp_path / "one" / "model"), weights(tmp_path / "two" / "model"))
    assert not same(weights(tmp_path / "one" / "model"), weights(tmp_path / "whole" / "model"))
    few, whole = traffic(tmp_path / "one"), traffic(tmp_path / "whole")
    assert few[0][0] == whole[0][0], "the first model comes whole"
    for (down, up), (before, _) in zip(few[1:], whole[1:], strict=True):
        assert down < before / 6.5, "4 bits, a scale for every 256 values, and a header"
        assert down < 1.1 * up


def test_a_run_that_was_interrupted_ends_in_the_same_bits(federation: Build, tmp_path: Path) -> None:
    settings = federation(**SETTINGS, train=STEPS, download="int4", checkpoint={"every": 1})
    run(settings, tmp_path / "once", workers=0)
    run(settings.model_copy(update={"rounds": 2}), tmp_path / "twice", workers=0)
    run(settings, tmp_path / "twice", workers=0, resume=True)
    assert same(weights(tmp_path / "once" / "model"), weights(tmp_path / "twice" / "model"))


def test_a_silo_that_missed_a_round_is_sent_the_whole_model(
    federation: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[tuple[int, str, bool]]()
    plain = LocalLink.ask

    def noting(self: LocalLink, asks: Any, until: Any) -> Any:
        for answer in plain(self, asks, until):
            request = asks[answer.node]
            if isinstance(request, Train):
                asked.append((request.round, answer.node, request.moved is not None))
                if (request.round, answer.node) == (2, "south"):
                    yield type(answer)(answer.node, Failure("it was away"), answer.sent, answer.received)
                    continue
            yield answer

    monkeypatch.setattr(LocalLink, "ask", noting)
    settings = federation(**SETTINGS, train=STEPS, download="int4", participation={"quorum": 0.5})
    run(settings, tmp_path / "run", workers=0)
    assert [moved for number, _, moved in asked if number == 1] == [False] * 3
    assert {(n, node) for n, node, moved in asked if n > 1 and not moved} == {(3, "south")}


def test_a_difference_from_a_model_that_the_silo_does_not_hold_is_a_failure(federation: Build, tmp_path: Path) -> None:
    settings = federation(**SETTINGS, train=STEPS, download="int4")
    run(settings.model_copy(update={"rounds": 0}), tmp_path / "run", workers=0)
    runtime = Runtime(settings, tmp_path / "run")
    answer = SiloHost(runtime).answer("north")
    start = runtime.start.copy()
    _, moved = encode_difference([Quantize(7)], start, SentModel(start, 1, (), ()), 2)
    nothing = EncodedUpdate.of({})
    reply = answer(Train(2, start.only(()), moved=nothing, held=1))
    assert isinstance(reply, Failure)
    assert "does not hold the model of round 1" in reply.reason
    assert isinstance(answer(Train(1, moved)), Update)
    assert isinstance(answer(Train(2, start.only(()), moved=nothing, held=1)), Update), "now it does"


def test_secure_aggregation_announces_and_masks_the_model_that_silos_hold(
    federation: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agreed = list[bool]()

    def check(self: MaskingClient, request: Train) -> None:
        agreed.append(model_digest(request.model) == self._recall(request.round).model)

    monkeypatch.setattr(MaskingClient, "check", check)  # which without signatures would not look
    common: dict[str, Any] = SETTINGS | {"train": STEPS, "rounds": 2, "secure_aggregation": True}
    run(federation(**common, download="int8"), tmp_path / "differences", workers=0)
    run(federation(**common), tmp_path / "whole", workers=0)
    found, whole = (weights(tmp_path / name / "model") for name in ("differences", "whole"))
    assert agreed == [True] * 12, "three silos, two rounds, two runs"
    assert all(torch.allclose(found[name], whole[name], atol=2e-2) for name in whole)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"download": "fragments"}, "'fragments' chooses tensors"),
        ({"download": "int8+int4"}, "at most one"),
        ({"download": "int4", "upload": {"steps": ["fragments"]}}, "upload 'both' already sends"),
        ({"download": "int4", "method": "fedkc"}, "for its exchange"),
        ({"download": "int4", "method": "fedbuff"}, "models of different age"),
    ],
)
def test_what_cannot_be_sent_as_differences_is_refused(settings: Any, reason: str, federation: Build) -> None:
    with pytest.raises(ConfigError, match=reason):
        build_method(federation(**{"task": "classify"} | settings))
