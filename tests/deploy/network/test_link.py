"""The NATS link: what identifies a request."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from hansa.core.messages import StepWindow, SubtreePart, Train, no_tensors
from hansa.core.tensors import Layout, Tensors
from hansa.deploy.kit import COORDINATOR, Kit
from hansa.deploy.network.open_requests import request_id
from hansa.deploy.server_session import server_session
from tests.conftest import Build
from tests.deploy.conftest import make_kits

MODEL = Tensors(Layout(("w",), ((2,),)), torch.tensor([1.0, 2.0]))
REQUEST = Train(3, MODEL, durable=1, subtree=SubtreePart("root", no_tensors(), time_limit=20.0))


@pytest.fixture
def link(federation: Build, tmp_path: Path) -> Iterator[Any]:
    kits = make_kits(federation(), tmp_path / "kits")
    with server_session(Kit(kits / COORDINATOR), tmp_path / "server", None, lambda text: None) as link:
        yield link


def id_of(node: str, request: Train, vectors: Any = None) -> str:
    return request_id("run", COORDINATOR, node, request, vectors or {}, None)


def test_a_request_repeated_after_a_restart_has_the_same_id() -> None:
    """The newest checkpoint and the time that is left differ after a restart; nothing else may."""
    id = id_of("north", REQUEST)
    repeated = replace(REQUEST, durable=2, subtree=SubtreePart("root", no_tensors(), time_limit=7.5))
    assert id_of("north", repeated) == id
    others = [
        replace(REQUEST, round=4),
        replace(REQUEST, schedule=StepWindow(0, 9)),
        replace(REQUEST, subtree=SubtreePart("west", no_tensors())),
        replace(REQUEST, subtree=None),
    ]
    ids = {id_of("north", other) for other in others}
    assert len(ids | {id, id_of("south", REQUEST)}) == 6
    assert id_of("north", REQUEST, {"model": ("0" * 32, 8)}) != id
