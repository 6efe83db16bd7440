"""Overlap of training and transfer: one round late, each step counted once, the same bits with and without a thread."""

import errno
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from hansa.client.host import SiloHost
from hansa.client.overlap import kept_state, merge
from hansa.client.runtime import Runtime
from hansa.client.state import StateFolder
from hansa.config.method import build_method
from hansa.core.errors import ConfigError
from hansa.core.messages import Evaluate, Scores, Train, Update
from hansa.core.tensors import Layout, Tensors
from hansa.runs.run import run
from tests.conftest import Build, same, weights

SETTINGS: dict[str, Any] = {"task": "classify", "model": "mini", "evaluate": {"every": 9, "share": 0.1}, "rounds": 3}
STEPS = {"lr": 0.2, "batch": 8, "samples": {"floor": 16}}
LAYOUT = Layout(("a", "b"), ((2,), (1,)))


def tensors(*values: float) -> Tensors:
    return Tensors(LAYOUT, torch.tensor(values))


def test_every_local_step_leaves_once_and_what_others_learned_is_added() -> None:
    """Two silos with steps of known size, by hand: a mean of both, one round late."""
    model = tensors(1.0, 2.0, 3.0)
    anchor = merge(model, None, tensors(1.0, 2.0, 3.0))
    model.flat.add_(0.5)  # the steps of round 1
    assert (anchor.flat - model.flat).tolist() == [-0.5] * 3
    state = kept_state(model, anchor, ["a", "b"])
    model.flat.add_(0.25)  # the steps of round 2, from the silo's own model
    anchor = merge(model, state, tensors(2.0, 3.0, 4.0))  # the mean of round 1: the other silo went 1.5 up
    assert (anchor.flat - model.flat).tolist() == [-0.25] * 3, "what left before does not leave again"
    assert model.flat.tolist() == [2.25, 3.25, 4.25]
    state = kept_state(model, anchor, ["b"])  # a fragment
    assert state.anchor.flat.tolist() == [2.0, 3.0, 4.25]
    model.flat.add_(1.0)
    anchor = merge(model, state, tensors(0.0, 0.0, 9.0).only(["b"]))
    assert (anchor.flat - model.flat).tolist() == [-1.25, -1.25, -1.0], "'a' has the steps of two rounds"


def silo(settings: Any, folder: Path, deployed: bool) -> Any:
    run(settings.model_copy(update={"rounds": 0}), folder, workers=0)
    return SiloHost(Runtime(settings, folder, deployed=deployed)).silo("north")


def replies(one: Any, scored: bool) -> list[Tensors]:
    """The updates of three rounds in which the server moves the model by other silos' updates, too."""
    model, found = one.resident.runtime.start.copy(), []
    for number in (1, 2, 3):
        reply = one.answer(Train(number, model.copy(), number - 1))
        assert isinstance(reply, Update)
        found.append(reply.gradient.copy())
        model.flat.sub_(reply.gradient.flat, alpha=0.5).add_(1e-3)
        if scored:  # which needs the resident model while steps are under way
            assert isinstance(one.answer(Evaluate(number, model, "train")), Scores)
    return found


def test_steps_ahead_in_a_thread_give_the_bits_of_steps_when_they_are_asked_for(
    federation: Build, tmp_path: Path
) -> None:
    train = STEPS | {"overlap": True, "optimizer": "adamw", "lr": 0.01, "keep_optimizer": True}
    settings = federation(**SETTINGS, train=train)
    simulated = replies(silo(settings, tmp_path / "a", False), False)
    agent = silo(settings, tmp_path / "b", True)
    ahead = replies(agent, True)
    assert agent._ahead.round == 3, "after the last round there is nothing to go on with"
    assert all(one.same_bits(other) for one, other in zip(simulated, ahead, strict=True))
    plain = settings.model_copy(update={"train": settings.train.model_copy(update={"overlap": False})})
    waiting = replies(silo(plain, tmp_path / "c", False), False)
    assert simulated[0].same_bits(waiting[0]), "the first round is the same"
    assert not simulated[1].same_bits(waiting[1]), "then what arrived counts a round later"


def test_one_silo_trains_as_if_it_were_alone(federation: Build, tmp_path: Path) -> None:
    """The mean over one silo is its own update: overlap must not change its training."""
    found = {}
    for name, overlap in (("plain", False), ("overlap", True)):
        settings = federation(**SETTINGS, sizes={"north": 60}, train=STEPS | {"overlap": overlap})
        run(settings, tmp_path / name, workers=0)
        found[name] = weights(tmp_path / name / "model")
    assert all(torch.allclose(found["plain"][n], found["overlap"][n], atol=1e-5) for n in found["plain"])


def test_quantised_fragments_both_ways_and_any_number_of_workers(federation: Build, tmp_path: Path) -> None:
    chain = [{"name": "fragments", "count": 2}, "int4"]
    settings = federation(**SETTINGS, train=STEPS | {"overlap": True}, upload={"steps": chain})
    run(settings, tmp_path / "one", workers=0)
    run(settings, tmp_path / "two", workers=2)
    assert same(weights(tmp_path / "one" / "model"), weights(tmp_path / "two" / "model"))


CHAIN = {"steps": [{"name": "fragments", "count": 2}, "int4"]}


# In its first round a silo that chooses tensors sends all of them, so that what it keeps of them is its whole model.
@pytest.mark.parametrize("upload", ["int4", CHAIN, {"steps": ["calm", "int4"]}])
def test_the_state_that_is_written_beside_the_steps_is_the_one_before_them(
    federation: Build, tmp_path: Path, upload: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state is written only when the steps ahead are over, and holds nothing that the steps changed."""
    train = STEPS | {"overlap": True, "optimizer": "adamw", "lr": 0.01, "keep_optimizer": True}
    settings = federation(**SETTINGS, train=train, upload=upload)
    simulated, agent = silo(settings, tmp_path / "a", False), silo(settings, tmp_path / "b", True)
    write = StateFolder._write

    def late(self: StateFolder, *given: Any) -> None:
        if agent._ahead is not None:
            agent._ahead.wait()
        write(self, *given)

    updates(simulated)
    monkeypatch.setattr(StateFolder, "_write", late)
    updates(agent)
    for number in (1, 2, 3):
        files = [one.resident.store._file(number) for one in (simulated, agent)]
        assert same(*map(load_file, files)), f"round {number}"


def test_after_a_crash_at_any_point_the_silo_sends_the_same_bits(
    federation: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that ends while the steps ahead run, before or after the state is on the disk, and a new one after."""
    train = STEPS | {"overlap": True, "optimizer": "adamw", "lr": 0.01, "keep_optimizer": True}
    settings = federation(**SETTINGS, train=train, upload="int4")
    requests = list[Train]()
    expected = updates(silo(settings, tmp_path / "whole", True), requests)
    for written in (False, True):
        folder = tmp_path / f"{written}"
        first = silo(settings, folder, True)
        assert sent(first.answer(requests[0])).equal(expected[0])
        write = StateFolder._write

        def crash(self: StateFolder, *given: Any, last: bool = written, do: Any = write) -> None:
            if last:
                do(self, *given)
            raise KeyboardInterrupt  # no reply has left

        with monkeypatch.context() as patch:
            patch.setattr(StateFolder, "_write", crash)
            with pytest.raises(KeyboardInterrupt):
                first.answer(requests[1])
        first._ahead.wait()
        second = SiloHost(Runtime(settings, folder, deployed=True)).silo("north")
        assert all(sent(second.answer(requests[i])).equal(expected[i]) for i in (1, 2))


def test_steps_ahead_of_a_state_that_could_not_be_written_do_not_count(
    federation: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The silo fails in round 2, so its round 3 goes on from round 1: as in a silo that was never asked for round 2."""
    train = STEPS | {"overlap": True, "optimizer": "adamw", "lr": 0.01, "keep_optimizer": True}
    settings = federation(**SETTINGS, train=train, upload="int4")
    requests, found = list[Train](), []
    updates(silo(settings, tmp_path / "whole", True), requests)
    for name in ("full", "absent"):
        one = silo(settings, tmp_path / name, True)
        one.answer(requests[0])
        if name == "full":
            with monkeypatch.context() as patch:
                patch.setattr(StateFolder, "_write", no_space)
                with pytest.raises(OSError, match="No space"):
                    one.answer(requests[1])
        found.append(sent(one.answer(requests[2])))
    assert found[0].equal(found[1])


def no_space(self: StateFolder, *given: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def sent(reply: Any) -> torch.Tensor:
    """The words of an encoded update."""
    assert isinstance(reply, Update)
    assert reply.encoded is not None
    words: torch.Tensor = reply.encoded.words.clone().view(torch.int32)
    return words


def updates(one: Any, requests: list[Train] | None = None) -> list[torch.Tensor]:
    """The encoded updates of three rounds, whose models do not depend on them; the requests are added to a list."""
    found, start = [], one.resident.runtime.start
    for number in (1, 2, 3):
        model = start.copy()
        model.flat.add_(1e-3 * number)
        request = Train(number, model, 0)
        found.append(sent(one.answer(request)))
        if requests is not None:
            requests.append(request)
    return found


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"method": "fedprox"}, "looks at the model that was received"),
        ({"method": "fedbuff"}, "no common rounds"),
        ({"personal": {}}, "'personal' trains"),
    ],
)
def test_what_needs_the_model_before_training_is_refused(settings: Any, reason: str, federation: Build) -> None:
    with pytest.raises(ConfigError, match=f"train.overlap.*{reason}"):
        build_method(federation(**{"task": "classify", "train": {"overlap": True}} | settings))
