"""Deviating behaviours: each function changes the process in which it is called, before its command runs."""

import json
import os
import pickle
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from hansa.client.silo import Silo
from hansa.core.messages import Failure, MaskingPart, RevealedShares, SecretShares, Train, Update
from hansa.core.participation import Assignment
from hansa.core.tensors import Layout, Tensors
from hansa.deploy.network.blob_client import BlobClient
from hansa.deploy.network.blob_protocol import RequestRefused, digest
from hansa.deploy.reply_store import PackedReply, ReplyStore
from hansa.privacy.secure_aggregation.server import MaskingServer


class Bomb:
    """Creates a folder when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.mkdir, (os.environ["HANSA_BOMB"],)


def pickles() -> None:
    """Send a pickle instead of the first update, and an unknown message instead of the second."""
    honest = ReplyStore.keep

    def keep(self: ReplyStore, request: str, round: int, kind: str, text: str, vectors: Any) -> PackedReply:
        if kind != "Update":
            return honest(self, request, round, kind, text, vectors)
        # Not stored: a repeated request must not find an honest reply.
        data = memoryview(pickle.dumps(Bomb()) if round == 1 else b'{"type": "os.system", "body": {}, "vectors": []}')
        return PackedReply(kind, {"": (digest(data), data)})

    ReplyStore.keep = keep  # type: ignore[method-assign]


def invalid_updates() -> None:
    """Send an update with NaN, then one with a tensor of another shape."""
    honest = Silo.train

    def train(self: Silo, request: Any, *rest: Any) -> Any:
        update = honest(self, request, *rest)
        assert isinstance(update, Update)
        if request.round == 1:
            update.gradient.flat.fill_(float("nan"))
            return update
        name = update.gradient.layout.names[0]
        return replace(update, gradient=Tensors(Layout((name,), ((3,),)), torch.ones(3)))

    Silo.train = train  # type: ignore[assignment, method-assign]


def oversized_uploads() -> None:
    """Before every upload, announce ten gigabytes, and ask for a path that is too long."""
    honest = BlobClient.upload

    def upload(self: BlobClient, view: memoryview, request: str, name: str | None = None) -> Any:
        for target in (f"/replies/{request}/{'0' * 32}", "/blobs/" + "x" * 100_000):
            with suppress(RequestRefused, OSError), self._transfer("GET", target) as call:
                call.send_head({"upload-length": str(10 << 30)})
                call.content(call.response())
            self.close()
        return honest(self, view, request, name)

    BlobClient.upload = upload  # type: ignore[method-assign]


def curious_server() -> None:
    """A coordinator that wants the update of one silo out of the masked sum.

    In the first two rounds east is shown a roster of one silo, then of two, to share its secrets with. In the third
    round, after all updates arrived, east is asked for another one with a roster without south, and all silos are asked
    to reveal shares twice: with north among those that answered, then without. Their replies are written to a file.
    """
    honest_ask, honest_extend = MaskingServer._ask, MaskingServer.extend
    sent: dict[str, Train] = {}

    def extend(self: MaskingServer, assignment: Assignment, request: Train) -> Train | None:
        extended = honest_extend(self, assignment, request)
        if extended is not None:
            sent[assignment.node] = extended
        return extended

    def reasons(self: MaskingServer, asks: dict[str, Any]) -> dict[str, str]:
        replies = {answer.node: answer.reply for answer in self._round.link.ask(asks, self._round.deadline())}
        return {
            node: reply.reason if isinstance(reply, Failure) else f"A {type(reply).__name__}!"
            for node, reply in replies.items()
        }

    def ask(self: MaskingServer, asks: Any, kind: type[Any]) -> dict[str, Any]:
        number = self._round.number
        if kind is SecretShares and number < 3:
            few = {name: self.announced[name] for name in ("east", "north")[:number]}
            return honest_ask(self, {**asks, "east": replace(asks["east"], roster=few)}, kind)
        if kind is not RevealedShares or number < 3:
            return honest_ask(self, asks, kind)
        masking = sent["east"].masking
        assert masking is not None
        one_less = MaskingPart({name: words for name, words in masking.roster.items() if name != "south"})
        received = {"update": reasons(self, {"east": replace(sent["east"], masking=one_less)})}
        found = honest_ask(self, asks, kind)
        without = {node: replace(r, answered=tuple(set(r.answered) - {"north"})) for node, r in asks.items()}
        received["unmask"] = reasons(self, without)
        Path(os.environ["HANSA_REPLIES"]).write_text(json.dumps(received))
        return found

    MaskingServer._ask, MaskingServer.extend = ask, extend  # type: ignore[method-assign]


def clock_ahead() -> None:
    """The clock of this process is 20 minutes ahead."""
    _set_clock(1200.0)


def clock_behind() -> None:
    """The clock of this process is 20 minutes behind."""
    _set_clock(-1200.0)


def _set_clock(seconds: float) -> None:
    from dataclasses import fields
    from time import time

    from hansa.deploy import agent
    from hansa.deploy.network import envelope

    def wrong() -> float:
        return time() + seconds

    agent.time = envelope.time = wrong  # type: ignore[attr-defined]
    [dated] = [field for field in fields(envelope.Envelope) if field.name == "sent_at"]
    defaults = envelope.Envelope.__init__

    def init(self: Any, *args: Any, **values: Any) -> None:
        defaults(self, *args, **({dated.name: wrong()} | values))

    envelope.Envelope.__init__ = init  # type: ignore[method-assign]


def waits_for_everybody() -> None:
    """A coordinator that does not look at the clocks of its silos."""
    from hansa.deploy.network.attendance import Attendance

    Attendance.reason_not_to_wait = lambda self, node: ""  # type: ignore[method-assign]


def ignores_positions() -> None:
    """A coordinator that does not look at the positions in heartbeats."""
    from hansa.deploy.network.attendance import Attendance

    Attendance.overtaken = lambda self, node, envelope: 0  # type: ignore[method-assign]


def ignores_full_disks() -> None:
    """A command line that does not recognise the errors of a full disk."""
    from hansa.cli import main

    main.disk_problem = lambda error: ""  # type: ignore[attr-defined]
