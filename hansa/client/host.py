"""All silos that run in one process, each behind its policy."""

from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from hansa.client.received import Receiving
from hansa.client.resident import ResidentSilo
from hansa.client.runtime import Runtime
from hansa.client.silo import Silo
from hansa.client.state import StateFolder
from hansa.config.asynchrony import rules_above
from hansa.config.nodes import Holder, leaves
from hansa.config.shared import settings_digest
from hansa.config.tree import holders
from hansa.core.messages import Reply, Request, Train
from hansa.privacy.dp.charging import RunCharging
from hansa.privacy.dp.units import UnitMechanism
from hansa.privacy.policy.audit_log import AUDIT_LOG, AuditLog
from hansa.privacy.policy.guard import Guard, RunContext, SiloChecks
from hansa.privacy.policy.model_check import ModelHistory
from hansa.privacy.policy.request_limits import RequestLimits
from hansa.privacy.policy.rules import Purpose

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
            self.runtime.for_silos = True
            store = StateFolder(self.runtime.folder / "silos" / name / "memory")
            self._silos[name] = Silo(ResidentSilo(name, self._holders[name], self.runtime, store))
        return self._silos[name]

    def answer(self, name: str) -> Answering:
        """How a silo answers requests from outside: within its policy, where it has one.

        What a region asks of its own data does not leave it.
        """
        if name not in self._answers:
            answer = self.silo(name).answer
            guarded = self.guarded(name, answer) if name in self._leaves else answer
            self._answers[name] = self.receiving(name, guarded)
        return self._answers[name]

    def receiving(self, name: str, answer: Answering) -> Answering:
        """An answer to requests that may have a difference in place of a model (`hansa.client.received`)."""
        if not self.runtime.method.download:
            return answer
        return Receiving(answer, StateFolder(self.runtime.folder / "silos" / name / "received"))

    def prefetch(self, name: str, request: Request) -> None:
        """Make the batches that a silo will train on, where they depend on nothing but the request."""
        runtime = self.runtime
        training, mechanism = runtime.federation.train, runtime.private.get(name)
        known = training.samples.adapt is None and not isinstance(mechanism, UnitMechanism)
        if isinstance(request, Train) and known and not runtime.in_parts:
            with suppress(Exception):  # what fails here fails again when the silo is asked, and is reported there
                self.silo(name).resident.prefetch(request.round, training)

    def guarded(self, name: str, answer: Answering) -> Answering:
        """An answer within the policy that the federation file names for the node, if it names one."""
        runtime, node = self.runtime, self.runtime.nodes.get(name)
        if node is None or node.policy is None:
            return answer
        federation, folder = runtime.federation, runtime.folder / "silos" / name
        audit_log, purpose = AuditLog(folder / AUDIT_LOG, name), Purpose.of(federation, name)
        checks = self.checks(name, folder) if name in self._leaves else None
        context = RunContext(runtime.folder.name, settings_digest(federation))
        asker = f"federation {federation.name}"
        return Guard(answer, Path(node.policy), purpose, audit_log, runtime.part_of, asker, context, checks)

    def checks(self, name: str, folder: Path, home: Path | None = None) -> SiloChecks:
        """What a guard checks of a silo's requests, by the settings.

        ``folder``: where the silo notes the models of this run; ``home``: where it keeps its privacy budget.
        """
        runtime, silo, method = self.runtime, self.silo(name), self.runtime.method
        one_model = method.hierarchy is None and not method.upload.both_ways
        one_model = one_model and all(rule.synchronous for rule in rules_above(runtime.federation, name))
        one_model = one_model and not method.download  # silos train from what they hold, and score the exact model
        charging = RunCharging(runtime.federation, name, home or folder, runtime.deployed)
        partial = method.hierarchy is not None or method.upload.both_ways
        whole = tuple if partial else lambda: runtime.shared.names
        start, part_of = (lambda: runtime.start), runtime.part_of
        models = ModelHistory(folder / "models", start, part_of, one_model, whole, silo.reach)
        needs_losses = not method.weighting.known_before_training
        return SiloChecks(RequestLimits(runtime.federation, name), models, silo.behind, charging, needs_losses)
