"""All silos that run in one process, each behind its policy."""

from collections.abc import Callable
from functools import cached_property

from hansa.client.resident import ResidentSilo
from hansa.client.runtime import Runtime
from hansa.client.silo import Silo
from hansa.client.state import StateFolder
from hansa.config.nodes import Holder, leaves
from hansa.config.tree import holders
from hansa.core.messages import Reply, Request
from hansa.privacy.policy.guard import guarded

Answering = Callable[[Request], Reply]


class SiloHost:
    """The silos of a federation file in this process; they share one `Runtime`."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self._silos: dict[str, Silo] = {}
        self._answers: dict[str, Answering] = {}

    @cached_property
    def _holders(self) -> dict[str, Holder]:
        return holders(self.runtime.federation)

    @cached_property
    def _leaves(self) -> frozenset[str]:
        return frozenset(leaves(self.runtime.federation.silos))

    def silo(self, name: str) -> Silo:
        """A silo, or the own data of a region, by name."""
        if name not in self._silos:
            store = StateFolder(self.runtime.folder / "silos" / name / "memory")
            self._silos[name] = Silo(ResidentSilo(name, self._holders[name], self.runtime, store))
        return self._silos[name]

    def answer(self, name: str) -> Answering:
        """How a silo answers requests from outside: within its policy, where it has one.

        What a region asks of its own data does not leave it.
        """
        if name not in self._answers:
            answer = self.silo(name).answer
            self._answers[name] = self.guarded(name, answer) if name in self._leaves else answer
        return self._answers[name]

    def guarded(self, name: str, answer: Answering) -> Answering:
        """An answer within the policy that the federation file names for the node, if it names one."""
        return guarded(name, self.runtime.federation, self.runtime.folder, answer, self.runtime.part_of)
