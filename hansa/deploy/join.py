"""`hansa join`: the agent of a silo. The text stays in ``data``; what leaves are the replies of its `Silo`."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from pydantic import ValidationError

from hansa.client.host import SiloHost
from hansa.client.runtime import Runtime
from hansa.config.federation import Federation
from hansa.config.nodes import Node, walk
from hansa.core import device
from hansa.core.errors import DataError, UserError
from hansa.core.messages import Reply, Request
from hansa.data.source import Source
from hansa.deploy.kit import Kit
from hansa.deploy.network.blob_server import Unusable
from hansa.deploy.policy_enforcer import PolicyEnforcer
from hansa.deploy.signatures import KitSigner

BLANK = (Source(train=""),)


def sources(kit: Kit, data: Sequence[Path]) -> tuple[Source, ...]:
    """How the kit says the data is read, with where it lies."""
    described = kit.card.sources
    if len(data) != len(described):
        raise UserError(f"silo '{kit.name}' has {len(described)} sources, and --data is given {len(data)} times")
    for path in data:
        if not path.exists():
            raise DataError(f"{path} does not exist; give the file or folder with the data of '{kit.name}'")
    return tuple(
        source.model_copy(update={"train": str(path.resolve())}) for source, path in zip(described, data, strict=True)
    )


class SiloTrade:
    """Answers from this silo's own data."""

    def __init__(
        self,
        kit: Kit,
        sources: tuple[Source, ...],
        plugins: tuple[str, ...],
        law: PolicyEnforcer | None = None,
        threads: int = 1,
    ) -> None:
        """With one thread it gives the same bits as a simulation; with more it is faster, where it has the cores."""
        self._kit, self._name, self._sources, self._plugins, self._law = kit, kit.name, sources, plugins, law
        self._threads = threads

    def refuse(self, message: str, round: int, reason: str) -> None:
        if self._law is not None:
            self._law.refuse(message, round, reason)

    def open(self, folder: Path, settings: bytes) -> Callable[[Request], Reply]:
        torch.set_num_threads(self._threads)
        told = own_settings(settings, self._name, self._sources, self._plugins)
        runtime = Runtime(told, folder, KitSigner(self._kit, folder, settings), device.choose())
        answer = SiloHost(runtime).silo(self._name).answer
        return self._law.over(answer, runtime) if self._law is not None else answer


def own_settings(settings: bytes, own: str, sources: tuple[Source, ...], plugins: tuple[str, ...]) -> Federation:
    """The federation as it is told, with a node's own data and its own code: the coordinator names neither."""
    try:
        told = Federation.model_validate_json(settings)
    except ValidationError as error:
        raise Unusable(f"the settings cannot be used: {str(error).splitlines()[0]}") from None
    if told.data.deidentify not in (None, "rules"):
        raise Unusable("the settings name a program of the coordinator's to de-identify with")
    nodes = dict(walk(told.silos))
    if own not in nodes:
        raise Unusable(f"the settings know no '{own}'")
    if any(node.mixture or node.model is not None for node in nodes.values()):
        raise Unusable("the settings name data or models of the members', which are theirs to name")

    def place(node: Node, name: str) -> Node:
        below = {n: place(child, n) for n, child in node.silos.items()}
        held = sources if name == own else BLANK if node.sources else ()
        return node.model_copy(update={"silos": below, "sources": held, "policy": None})

    silos = {name: place(node, name) for name, node in told.silos.items()}
    return told.model_copy(update={"silos": silos, "plugins": plugins})
