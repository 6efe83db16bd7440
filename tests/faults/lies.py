"""What processes of the cast do that lie: applied in that process alone, before it starts like any other."""

import os
import pickle
from dataclasses import replace
from typing import Any

import torch

from hansa.deploy.spool import Packed, Spool
from hansa.links.depot import Refusal, digest, write_line
from hansa.links.porter import Porter
from hansa.node import Silo
from hansa.tensors import Layout, Tensors


class Bomb:
    """Whoever unpickles this leaves a trace."""

    def __reduce__(self) -> Any:
        return os.mkdir, (os.environ["HANSA_BOMB"],)


def pickles() -> None:
    """Its updates are pickles, its reply an unknown message in the second round."""
    honest = Spool.keep

    def keep(self: Spool, request: str, round: int, kind: str, text: str, vectors: Any) -> Packed:
        if kind != "Update":
            return honest(self, request, round, kind, text, vectors)
        # Nothing is put on disk: asked again, it must not find an honest answer there.
        lie = memoryview(pickle.dumps(Bomb()) if round == 1 else b'{"type": "os.system", "body": {}, "vectors": []}')
        return Packed(kind, {"": (digest(lie), lie)})

    Spool.keep = keep  # type: ignore[method-assign]


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
    honest = Porter.bring

    def bring(self: Porter, view: memoryview, request: str, name: str | None = None) -> Any:
        for line in ({"put": "0" * 32, "size": 10 << 30, "for": request}, {"get": "x" * 100_000, "from": 0}):
            try:
                connection = self._connected()
                write_line(connection, line)
                self._heard(connection)
            except (Refusal, OSError, ValueError):
                pass
            self.close()
        return honest(self, view, request, name)

    Porter.bring = bring  # type: ignore[method-assign]
