"""The plan of a federation, at its authority: which nodes may become members, and what their kits contain.

The plan comes from the federation file (planning.py). It is what the authority checks a key request against.
"""

from pathlib import Path

from pydantic import ValidationError

from hansa.core.errors import UserError, did_you_mean
from hansa.core.settings import Section
from hansa.data.source import Source
from hansa.deploy.certificates import write_file
from hansa.deploy.kit import COORDINATOR, VERSION, Endpoint, KitInfo

PLAN = "plan.json"
AUTHORITY = "authority"  # the folder of the authority, beside kits of `hansa kit create`


class PlannedNode(Section):
    """A node of the federation file: what its kit will contain."""

    kind: str
    parent: str | None
    serves: Endpoint | None = None
    rounds: int = 1
    sources: tuple[Source, ...] = ()


class Plan(Section):
    """The nodes of a federation; ``policy``: the policy that is proposed to its silos."""

    version: int = VERSION
    federation: str
    nodes: dict[str, PlannedNode]
    policy: str

    def info(self, name: str) -> KitInfo:
        """The content of a node's kit.json; raises `UserError` if the plan does not have the node."""
        if name not in self.nodes:
            raise UserError(
                f"the federation '{self.federation}' has no node '{name}'; {did_you_mean(name, self.nodes)} "
                "'hansa kit add' adds a node"
            )
        node = self.nodes[name]
        return KitInfo(
            version=VERSION,
            federation=self.federation,
            node=name,
            kind=node.kind,
            parent=_for_children(self.nodes[node.parent].serves) if node.parent is not None else None,
            serves=node.serves,
            rounds=node.rounds,
            sources=node.sources,
        )

    def serving(self) -> list[str]:
        """The coordinator and the regions."""
        return [name for name, node in self.nodes.items() if node.serves is not None]

    def extended(self, newer: "Plan") -> "Plan":
        """The plan with the new nodes of a newer plan.

        Nodes that the newer one no longer has stay members until they are revoked. Raises `UserError` if it belongs to
        another federation, or gives a member another place.
        """
        if newer.federation != self.federation:
            raise UserError(f"the file is of federation '{newer.federation}', the authority of '{self.federation}'")
        for name in newer.nodes.keys() & self.nodes.keys():
            old, new = self.nodes[name], newer.nodes[name]
            if (old.kind, old.parent) != (new.kind, new.parent):
                raise UserError(
                    f"'{name}' is a {old.kind} below '{old.parent}', and the file makes it a {new.kind} below "
                    f"'{new.parent}': a member keeps its place; give the node in the file another name"
                )
        return newer.model_copy(update={"nodes": {**newer.nodes, **self.nodes}})

    @property
    def nats(self) -> tuple[str, ...]:
        """The existing NATS servers that the coordinator uses, as HOST:PORT; empty if it starts its own."""
        place = self.nodes[COORDINATOR].serves
        return place.nats if place is not None else ()

    def write(self, folder: Path) -> None:
        """Write the plan into the authority's folder."""
        write_file(folder / PLAN, self.model_dump_json(indent=1).encode())

    @staticmethod
    def read(folder: Path) -> "Plan":
        """The plan in the authority's folder; raises `UserError` if it cannot be used."""
        try:
            return Plan.model_validate_json((folder / PLAN).read_text(encoding="utf-8"))
        except (OSError, ValidationError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise UserError(f"{folder / PLAN} cannot be used ({reason}); restore it from a backup") from None


def _for_children(place: Endpoint | None) -> Endpoint | None:
    """What children need to know of their parent's place: not its NATS servers."""
    return place.model_copy(update={"nats": ()}) if place is not None else None
