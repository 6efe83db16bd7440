"""Passban et al. (2022): half of the tensors leave, chosen by how far they moved; the others stay the silo's own."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hansa.client.host import SiloHost
from hansa.client.runtime import Runtime
from hansa.compressors.dynamic_pulling import DynamicPulling, movement
from hansa.config.file import parse
from hansa.config.method import build_method
from hansa.core.compression import CompressorChain, NoCompression, OutgoingUpdate, UploadState
from hansa.core.errors import ConfigError
from hansa.core.link import Answer
from hansa.core.messages import Failure, Train
from hansa.core.participation import Child, RoundSettings
from hansa.core.round import Server, Turn, federated_round
from hansa.core.state import SERVER, ServerState, tensors_in
from hansa.core.tensors import Layout, Tensors
from hansa.methods.fedavg import Mean, fedavg
from hansa.methods.robust import TrimmedMean
from hansa.runs.ledger import Ledger
from hansa.runs.run import run
from tests.conftest import Build, same, weights
from tests.toys import update

NAMES = tuple(f"{side}.{i}" for side in ("encoder", "decoder") for i in range(5))
LAYOUT = Layout(NAMES, tuple((i % 5 + 1, 3) for i in range(10)))
SIDES = {name: name.split(".")[0] for name in NAMES}


def work(pulling: Any, before: Tensors, after: Tensors, round: int = 2) -> Any:
    """What leaves a silo whose model went from one state to another since its last round."""
    gradient, state = Tensors(LAYOUT, -after.flat), UploadState(sent=before)
    outgoing = OutgoingUpdate(gradient, after, round, "silo", 0, SIDES, frozenset({"encoder.4"}), state)
    return CompressorChain((pulling,)).compress(outgoing), outgoing


def states(seed: int) -> tuple[Tensors, Tensors]:
    rng = np.random.default_rng(seed)
    before = Tensors(LAYOUT, torch.from_numpy(rng.normal(size=LAYOUT.size).astype(np.float32)))
    after = before.copy()
    for t in after.named().values():
        t.add_(torch.from_numpy(rng.normal(scale=10 ** rng.uniform(-3, 1), size=tuple(t.shape)).astype(np.float32)))
    return before, after


@given(st.integers(0, 10**6))
def test_the_sets_are_those_of_equations_2_and_3(seed: int) -> None:
    """The oracle: the median of the norms, side by side, in numpy."""
    before, after = states(seed)
    expected: dict[Any, set[str]] = {"active": set(), "calm": set()}
    for side in ("encoder", "decoder"):
        d = {n: np.linalg.norm(after[n].numpy() - before[n].numpy()) for n in NAMES if SIDES[n] == side}
        threshold = np.median(list(d.values()))
        expected["active"] |= {n for n in d if d[n] >= threshold}
        expected["calm"] |= {n for n in d if d[n] < threshold}
    for choose, names in expected.items():
        sent, outgoing = work(DynamicPulling(choose), before, after)
        assert set(sent.layout.names) == names
        local = outgoing.kept.local.named()
        assert set(local) == set(NAMES) - names
        assert all(torch.equal(value, after[name]) for name, value in local.items())
        assert len(outgoing.movement) == len(NAMES)


def test_the_first_round_sends_everything() -> None:
    _, after = states(0)
    outgoing = OutgoingUpdate(after, after, 1, "silo", 0, SIDES, frozenset())
    sent = CompressorChain((DynamicPulling("calm"),)).compress(outgoing)
    assert isinstance(sent, Tensors)
    assert sent.same_bits(after)
    assert outgoing.movement == ()


def test_one_threshold_for_both_sides_would_choose_otherwise() -> None:
    """The control: the decoder moves ten times as far, so a common median would send the encoder alone."""
    before, _ = states(0)
    after = before.copy()
    for i, (name, t) in enumerate(after.named().items()):
        t.add_((10.0 if SIDES[name] == "decoder" else 0.1) * (1 + i / 100) / t.numel() ** 0.5)
    sent, _ = work(DynamicPulling("calm"), before, after)
    assert {SIDES[n] for n in sent.layout.names} == {"encoder", "decoder"}


@pytest.mark.parametrize("norm", ["raw", "l1", "relative", "rms"])
def test_norms(norm: Any) -> None:
    before, after = torch.tensor([3.0, 4.0]), torch.tensor([6.0, 0.0])
    expected = {"raw": 5.0, "l1": 7.0, "relative": 1.0, "rms": 12.5**0.5}
    assert movement(after, before, norm) == pytest.approx(expected[norm])


@pytest.mark.parametrize("choose", ["active", "calm", "random"])
@pytest.mark.parametrize("keep", [0.2, 0.33, 0.5, 1.0])
def test_a_share_of_parameters_is_never_exceeded_and_nearly_used(choose: Any, keep: Any) -> None:
    for seed in range(10):
        sent, _ = work(DynamicPulling(choose, keep, by="parameters"), *states(seed))
        for side in ("encoder", "decoder"):
            total = sum(LAYOUT.spans[n].stop - LAYOUT.spans[n].start for n in NAMES if SIDES[n] == side)
            used = sum(sent[n].numel() for n in sent.layout.names if SIDES[n] == side)
            assert used <= keep * total + 1e-6
            assert keep < 1.0 or used == total


def test_random_sends_as_much_as_the_rule_it_is_compared_with_but_other_tensors() -> None:
    chosen = set()
    for seed in range(20):
        before, after = states(seed)
        calm, _ = work(DynamicPulling("calm", by="parameters"), before, after)
        drawn, _ = work(DynamicPulling("random", by="parameters"), before, after, round=seed)
        assert 0.6 * calm.layout.size <= drawn.layout.size <= calm.layout.size
        chosen.add(drawn.layout.names)
        again, _ = work(DynamicPulling("random", by="parameters"), before, after, round=seed)
        assert again.layout == drawn.layout, "from the seed"
    assert len(chosen) >= 5


def test_embeddings_may_stay_home() -> None:
    for seed in range(5):
        sent, _ = work(DynamicPulling("active", 1.0, embeddings=False), *states(seed))
        assert set(sent.layout.names) == set(NAMES) - {"encoder.4"}


# ── where updates meet ────────────────────────────────────────────────────────────────────────────────────────────

TWO = Layout(("a", "b", "c"), ((1,), (1,), (1,)))


def some(**values: float) -> Any:
    gradient = Tensors.of({name: torch.tensor([value]) for name, value in values.items()})
    return replace(update([0.0], samples=1, loss=0.5), gradient=gradient)


@pytest.mark.parametrize("rule", [Mean(), TrimmedMean(0.5), TrimmedMean(0.2)])
def test_every_tensor_is_combined_over_those_who_sent_it(rule: Any) -> None:
    updates = [some(a=2.0), some(a=4.0, b=6.0), some(b=8.0)]
    found = rule.combine(TWO, ((u, 1.0) for u in updates))
    assert found.flat.tolist() == [3.0, 7.0, 0.0]


class Given:
    size, remote, posting = 1, False, None

    def __init__(self, replies: Any) -> None:
        self.replies = replies

    def ask(self, asks: Any, until: Any) -> Any:
        for node in asks:
            yield Answer(node, self.replies[node])


def one_round(replies: Any, upload: Any, server: Any = "sgd") -> Any:
    settings = parse({"silos": dict.fromkeys(replies, "x"), "server": {"optimizer": server, "lr": 0.5}})
    method = replace(build_method(settings), upload=upload)
    state = ServerState(Tensors(TWO, torch.tensor([5.0, 5.0, 5.0])), {SERVER: method.server.begin(TWO)})
    for moment in tensors_in(state.slots[SERVER]):
        moment.flat.add_(1.0)
    children = {n: Child(1, 1) for n in replies}
    return federated_round(Server("root", children, Given(replies), method, RoundSettings()), state, Turn(1)), state


@pytest.mark.parametrize("server", ["sgd", "momentum", "adam", "adagrad", "yogi"])
def test_a_tensor_nobody_sent_stays_as_it_is_whatever_the_server_remembers(server: Any) -> None:
    record, state = one_round({"x": some(a=1.0), "y": some(b=1.0)}, CompressorChain((DynamicPulling("calm"),)), server)
    assert not record.failed
    assert state.model.flat[2] == 5.0
    assert (state.model.flat[:2] < 5.0).all()
    assert all(moment.flat[2] == 1.0 for moment in tensors_in(state.slots[SERVER]))


def test_tensors_may_be_left_out_only_where_the_file_says_so() -> None:
    record, _ = one_round({"x": some(a=1.0, b=1.0, c=1.0), "y": some(b=1.0)}, NoCompression())
    assert "lacks a" in record.failures["y"]
    record, _ = one_round({"x": some(a=1.0), "y": some(invented=1.0)}, CompressorChain((DynamicPulling("calm"),)))
    assert "invented" in record.failures["y"]
    assert list(record.updates) == ["x"]


# ── whole runs ────────────────────────────────────────────────────────────────────────────────────────────────────


def ran(federation: Build, folder: Any, upload: Any, **settings: Any) -> Any:
    outcome = run(federation(tokenizer={"kind": "bytes"}, upload=upload, **settings), folder, workers=0)
    ledger = Ledger(outcome.folder)
    rounds = ledger.select("select round, sum(sent), sum(received) from traffic group by round order by round")
    ledger.close()
    return outcome.folder, rounds, outcome.own


def test_all_kept_is_the_whole_upload_bit_for_bit(federation: Build, tmp_path: Path) -> None:
    """The limit: 100% of the tensors."""
    whole, _, _ = ran(federation, tmp_path / "a", "whole", rounds=2)
    kept, _, _ = ran(federation, tmp_path / "b", {"name": "calm", "keep": 1.0}, rounds=2)
    assert same(weights(whole / "model"), weights(kept / "model"))


def test_both_directions_learn_the_same_for_fewer_bytes_down(federation: Build, tmp_path: Path) -> None:
    steps = {"name": "calm", "by": "parameters", "norm": "rms"}
    up, up_bytes, own = ran(federation, tmp_path / "up", steps)
    both, both_bytes, _ = ran(federation, tmp_path / "both", steps | {"both": True})
    for name, tensor in weights(up / "model").items():
        np.testing.assert_allclose(weights(both / "model")[name], tensor, atol=1e-6)
    assert up_bytes[0][2] == pytest.approx(both_bytes[0][2], rel=0.01), "the first round sends everything"
    assert up_bytes[2][2] < 0.55 * up_bytes[0][2], "then half of it goes up"
    assert both_bytes[2][1] < 0.55 * up_bytes[2][1], "and with both, half of it comes down"
    assert set(own) == {"north", "south", "east"}
    ledger = Ledger(up)
    order = [split for (split,) in ledger.select("select split from metrics order by rowid")]
    ledger.close()
    assert order[0] == "test", "the federation's own scores come first: curves are drawn from them"
    assert order.count("own test") == order.count("test") / 3, "own models are scored once, at the end"


def test_what_is_not_sent_stays_local_and_is_exported_as_the_silos_own_model(federation: Build, tmp_path: Path) -> None:
    local, _, _ = ran(federation, tmp_path / "a", {"name": "calm"})
    shared = weights(local / "model")
    own = weights(local / "silos" / "north" / "model")
    differ = {name for name in shared if not torch.equal(shared[name], own[name])}
    assert 0.3 * len(shared) < len(differ) < 0.7 * len(shared)
    plain, _, none = ran(federation, tmp_path / "b", {"name": "calm", "local": False})
    assert not (plain / "silos" / "north" / "model").exists()
    assert not none


@pytest.mark.parametrize(
    "settings",
    [
        {"method": {"name": "fedprox", "mu": 0.1}, "server": {"optimizer": "adam", "lr": 0.01}},
        {"method": {"name": "fedbuff", "buffer": 2}},
        {"method": "median"},
    ],
)
def test_it_composes(federation: Build, tmp_path: Path, settings: Any) -> None:
    _, rounds, _ = ran(federation, tmp_path / "run", "calm+int8", rounds=3, **settings)
    assert len(rounds) == 3


def test_it_composes_with_a_tree(federation: Build, tmp_path: Path) -> None:
    flat = federation(tokenizer={"kind": "bytes"}, rounds=3, upload="calm")
    silos = dict(flat.silos)
    tree = {
        "west": {"silos": {n: silos[n].model_dump() for n in ("north", "south")}},
        "east": silos["east"].model_dump(),
    }
    raw = flat.model_dump() | {"silos": tree}
    outcome = run(parse(raw), tmp_path / "run", workers=0)
    ledger = Ledger(outcome.folder)
    sizes = ledger.select("select received from traffic where node='west' order by round")
    ledger.close()
    assert sizes[2][0] < sizes[0][0], "a region sends only what somebody below it sent"


@pytest.mark.parametrize("upload", ["active+int8", {"name": "calm", "norm": "rms", "both": True}], ids=str)
def test_the_same_bits_in_worker_processes(federation: Build, tmp_path: Path, upload: Any) -> None:
    settings = federation(tokenizer={"kind": "bytes"}, rounds=3, upload=upload, sizes={"north": 40, "south": 30})
    here, there = run(settings, tmp_path / "a", workers=0), run(settings, tmp_path / "b", workers=1)
    assert same(weights(here.folder / "model"), weights(there.folder / "model"))
    assert here.own == there.own


def test_a_run_resumes_with_what_its_silos_remember(
    federation: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = federation(tokenizer={"kind": "bytes"}, rounds=4, upload={"name": "calm", "both": True})
    straight = run(settings, tmp_path / "a", workers=0)
    stop = Ledger.checkpointed

    def stopping(ledger: Any, round: int, seconds: Any) -> None:
        stop(ledger, round, seconds)
        if round == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "checkpointed", stopping)
        with pytest.raises(KeyboardInterrupt):
            run(settings, tmp_path / "b", workers=0)
    resumed = run(settings, tmp_path / "b", resume=True, workers=0)
    assert same(weights(straight.folder / "model"), weights(resumed.folder / "model"))


def test_a_silo_without_its_memory_says_so(federation: Build, tmp_path: Path) -> None:
    settings = federation(tokenizer={"kind": "bytes"}, rounds=1, upload={"name": "calm", "both": True})
    outcome = run(settings, tmp_path / "run", workers=0)
    runtime = Runtime(settings, outcome.folder)
    reply = SiloHost(runtime).answer("north")(Train(1, runtime.start.only(runtime.shared.names[:3])))
    assert isinstance(reply, Failure)
    assert "does not remember" in reply.reason


@pytest.mark.parametrize(
    ("upload", "sentence"),
    [
        ({"name": "calm", "keep": 0}, "upload.keep is 0"),
        ({"name": "calm", "keep": 1.5}, "upload.keep is 1.5"),
        ({"name": "top-k", "keep": -1}, "upload.keep is -1"),
        ("cool", "upload 'cool' is not known"),
        ({"name": "calm", "tensors": ["x"]}, "upload.tensors is not a setting of 'calm'"),
        ({"steps": "calm+int9"}, "upload 'int9' is not known"),
        (5, r"upload.steps is 5"),
        ({"steps": {"nme": "calm"}}, "upload.steps.0.name' is missing"),
        ("int8+top-k", "'top-k' stands after 'int8'"),
        ("calm+active", "both decide about tensors"),
        ("bf16+int8", "both decide about numbers"),
        ([{"name": "calm", "both": True}, "int8"], "leave one of the two out"),
        ({"name": "calm", "both": True, "local": False}, "leave 'local: false' out"),
    ],
)
def test_mistakes_are_answered_in_a_sentence(upload: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        build_method(parse({"silos": {"a": "x"}, "upload": upload}))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"method": "krum", "upload": "calm"}, "compares whole updates"),
        ({"method": "fedbuff", "upload": {"name": "calm", "both": True}}, "which method 'fedbuff' does not have"),
    ],
)
def test_what_makes_no_sense_together_is_refused(settings: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        build_method(parse({"silos": dict.fromkeys("abcdef", "x")} | settings))
    assert fedavg().upload == NoCompression()
