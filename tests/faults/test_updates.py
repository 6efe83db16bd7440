"""Invalid updates and messages: rejected with a reason; the round goes on."""

import pickle
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from safetensors.torch import save

from hansa.config.file import parse
from hansa.core import wire
from hansa.core.link import Answer
from hansa.core.messages import Failure, Scores, Train, Update
from hansa.core.participation import Child
from hansa.core.round import Server, Turn, federated_round, problem
from hansa.core.state import ServerState
from hansa.core.tensors import Layout, Tensors
from hansa.methods.fedavg import fedavg
from hansa.runs.topology import round_settings
from tests.toys import update

LAYOUT = Layout(("w",), ((2,),))
GOOD = update([1.0, -1.0], samples=10, loss=0.5)
NAN, INF = float("nan"), float("inf")
BAD = {
    "not finite": update([NAN, 0.0]),
    "not finite ": update([0.0, INF]),
    "claims 0 samples": replace(GOOD, samples=0),
    "claims -3 samples": replace(GOOD, samples=-3),
    "claims 10000000000000 samples": replace(GOOD, samples=10**13),
    "training loss is nan": replace(GOOD, loss=NAN),
    "which the model does not have": update([1.0, 2.0, 3.0]),
    "its update has v": update([1.0, 2.0], name="v"),
    "it sent a Scores": Scores({}),
    "gone": Failure("gone"),
}


class FixedLink:
    """A link with given replies."""

    size, remote, posting = 1, False, None

    def __init__(self, replies: Any) -> None:
        self.replies = replies

    def ask(self, asks: Any, until: Any) -> Iterator[Any]:
        for node in asks:
            yield Answer(node, self.replies[node])


def one_round(replies: Any, quorum: float = 0.5) -> Any:
    settings = parse({"silos": dict.fromkeys(replies, "x"), "participation": {"quorum": quorum}})
    state = ServerState(Tensors(LAYOUT, torch.tensor([5.0, 5.0])))
    children = {name: Child(10, 10) for name in replies}
    server = Server("root", children, FixedLink(replies), fedavg(), round_settings(settings))
    return federated_round(server, state, Turn(1)), state


@pytest.mark.parametrize("reason", BAD)
def test_an_invalid_update_is_left_out_with_a_reason(reason: Any) -> None:
    record, state = one_round({"good": GOOD, "bad": BAD[reason]})
    assert reason.strip() in record.failures["bad"]
    assert list(record.updates) == ["good"]
    assert state.model.flat.tolist() == [4.0, 6.0], "only the valid update moved the model"


def test_too_few_valid_updates_change_nothing() -> None:
    record, state = one_round({"a": GOOD, "b": BAD["gone"], "c": BAD["not finite"]}, quorum=0.6)
    assert "1 of 3 sent a valid update, 2 needed" in record.failed
    assert state.model.flat.tolist() == [5.0, 5.0]
    assert state.round == 0


def test_a_valid_update_has_no_problem() -> None:
    assert problem(GOOD, LAYOUT) == ""


class Bomb:
    def __reduce__(self) -> Any:
        return (pytest.fail, ("a payload was executed",))


def safetensors(header: str, **tensors: torch.Tensor) -> bytes:
    return save(tensors, {"message": header})


def train(round: str, layout: str, model: torch.Tensor) -> bytes:
    header = f'{{"type": "Train", "body": {{"round": {round}, "durable": 0}}, "vectors": ["model"]}}'
    return safetensors(f"{header}\n{layout}", model=model)


@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps(Bomb()),
        b"",
        b"\x00" * 7,
        b"\xff" * 64,
        (10**10).to_bytes(8, "little") + b"{}",
        save({}),
        safetensors("not json"),
        safetensors('{"type": "Train"}'),
        safetensors('{"type": "os.system", "body": {}, "vectors": []}'),
        safetensors('{"type": "Failure", "body": {"reason": 3}, "vectors": []}'),
        safetensors('{"type": "Failure", "body": {"reason": "x", "more": 1}, "vectors": []}'),
        safetensors('{"type": "Failure", "body": {}, "vectors": []}'),
        train("true", "[[], []]", torch.zeros(0)),
        train("1", '[["w"], [[3]]]', torch.zeros(2)),
        train("1", '[["w"], [[-2]]]', torch.zeros(2)),
        train("1", '[["w", "w"], [[1], [1]]]', torch.zeros(2)),
        train("1", "nonsense", torch.zeros(2)),
        train("1", '[["w"], [[2]]]', torch.zeros(2, dtype=torch.float64)),
        safetensors('{"type": "Train", "body": {"round": 1, "durable": 0}, "vectors": []}', model=torch.zeros(2)),
    ],
)
def test_invalid_messages_are_rejected_and_no_code_runs(data: Any) -> None:
    with pytest.raises(wire.BadMessage):
        wire.decode(data)


def test_a_truncated_message_is_rejected() -> None:
    whole = wire.encode(Train(1, Tensors(LAYOUT, torch.tensor([1.0, 2.0]))))
    for length in range(0, len(whole) - 1, 7):
        with pytest.raises(wire.BadMessage):
            wire.decode(whole[:length])
    assert isinstance(wire.decode(whole), Train)
    assert isinstance(GOOD, Update)
