"""What processes of the deployment do that lie: applied in that process alone, before it starts like any other."""

import json
import os
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from hansa.client.silo import Silo
from hansa.core.messages import Failure, RevealedShares, SecretShares, Train
from hansa.core.participation import until
from hansa.core.tensors import Layout, Tensors
from hansa.deploy.network.blob_client import BlobClient
from hansa.deploy.network.blob_server import RequestRefused, digest, write_line
from hansa.deploy.reply_store import Packed, ReplyStore
from hansa.privacy.secure_aggregation.server import MaskingServer


class Bomb:
    """Whoever unpickles this leaves a trace."""

    def __reduce__(self) -> Any:
        return os.mkdir, (os.environ["HANSA_BOMB"],)


def pickles() -> None:
    """Its updates are pickles, its reply an unknown message in the second round."""
    honest = ReplyStore.keep

    def keep(self: ReplyStore, request: str, round: int, kind: str, text: str, vectors: Any) -> Packed:
        if kind != "Update":
            return honest(self, request, round, kind, text, vectors)
        # Nothing is put on disk: asked again, it must not find an honest answer there.
        lie = memoryview(pickle.dumps(Bomb()) if round == 1 else b'{"type": "os.system", "body": {}, "vectors": []}')
        return Packed(kind, {"": (digest(lie), lie)})

    ReplyStore.keep = keep  # type: ignore[method-assign]


def nonsense() -> None:
    """NaN, then a tensor of a shape that it has in no model."""
    honest = Silo.train

    def train(self: Silo, request: Any, *rest: Any) -> Any:
        update = honest(self, request, *rest)
        if request.round == 1:
            update.gradient.flat.fill_(float("nan"))
            return update
        name = update.gradient.layout.names[0]
        return replace(update, gradient=Tensors(Layout((name,), ((3,),)), torch.ones(3)))

    Silo.train = train  # type: ignore[method-assign]


def greedy() -> None:
    """Before it brings anything it announces ten gigabytes, and begins a line that never ends."""
    honest = BlobClient.upload

    def bring(self: BlobClient, view: memoryview, request: str, name: str | None = None) -> Any:
        for line in ({"put": "0" * 32, "size": 10 << 30, "for": request}, {"get": "x" * 100_000, "from": 0}):
            try:
                connection = self._connected()
                write_line(connection, line)
                self._heard(connection)
            except (RequestRefused, OSError, ValueError):
                pass
            self.close()
        return honest(self, view, request, name)

    BlobClient.upload = bring  # type: ignore[method-assign]


def curious() -> None:
    """A coordinator that wants one silo's update out of the sum. In the first two rounds east is shown a list of one,
    then of two, to entrust its secrets to. In the third, all have sent their updates: east is asked for another one for
    a list without south, and all are asked to unmask the sum with north in it, then without. What they say is kept."""
    asked, told = MaskingServer._ask, MaskingServer.brief
    sent: dict[str, Train] = {}

    def brief(self: MaskingServer, node: str, plain: Train | None) -> Train | None:
        request = told(self, node, plain)
        if request is not None:
            sent[node] = request
        return request

    def again(self: MaskingServer, asks: dict[str, Any]) -> dict[str, str]:
        answers = self.asker.link.ask(asks, until(self.asker.settings.participation))
        replies = {answer.node: answer.reply for answer in answers}
        return {
            node: reply.reason if isinstance(reply, Failure) else f"A {type(reply).__name__}!"
            for node, reply in replies.items()
        }

    def ask(self: MaskingServer, asks: Any, kind: type[Any]) -> dict[str, Any]:
        if kind is SecretShares and self.number < 3:
            few = {name: self.shown[name] for name in ("east", "north")[: self.number]}
            return asked(self, {**asks, "east": replace(asks["east"], roster=few)}, kind)
        if kind is not RevealedShares or self.number < 3:
            return asked(self, asks, kind)
        one_less = {name: words for name, words in sent["east"].roster.items() if name != "south"}
        heard = {"update": again(self, {"east": replace(sent["east"], roster=one_less)})}
        found = asked(self, asks, kind)
        without = {node: replace(r, answered=tuple(set(r.answered) - {"north"})) for node, r in asks.items()}
        heard["unmask"] = again(self, without)
        Path(os.environ["HANSA_HEARD"]).write_text(json.dumps(heard))
        return found

    MaskingServer._ask, MaskingServer.brief = ask, brief  # type: ignore[method-assign]
