"""What a request costs a silo's privacy budget, charged before it is answered.

There are two limits. The policy's `budget:` covers all runs together. Between organisations a run is also held to what
it promised itself: its settings state an ε for so many rounds, and a coordinator that asks for the same round again,
to average the noise away, would exceed it (`hansa.privacy.dp.budget` keeps both).
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from hansa.config.federation import Federation
from hansa.config.method import build_method
from hansa.core.messages import Personalise, Request, ShareKnowledge, Train
from hansa.core.survey_messages import TakeSurvey
from hansa.privacy.dp.budget import BUDGET_FILE, BudgetDamaged, BudgetExceeded, Charge, PrivacyBudget
from hansa.privacy.dp.prices import silo_price, update_mechanisms

NO_NOISE = "the policy has a privacy budget, and what is asked for carries no noise, so that it has no ε"
ROUNDING = 1e-6  # of an ε that is compared with the same ε


@dataclass(frozen=True)
class RunCharging:
    """Charges the requests that a silo gets in one run.

    ``home``: the folder of the budget's file; ``holds_promise``: whether the run is held to the ε of its settings.
    """

    federation: Federation
    node: str
    home: Path
    holds_promise: bool = False

    def refusal(self, limit: tuple[float, float] | None, run: str, request: Request) -> str:
        """Charge a request and return why it is refused, empty if it is not; ``limit``: ε and δ of the policy."""
        if isinstance(request, TakeSurvey):
            return NO_NOISE if limit is not None else ""
        if not isinstance(request, Train | ShareKnowledge) and not (isinstance(request, Personalise) and request.share):
            return ""
        charges = charges_for(self.federation, self.node, run, request)
        if not charges and limit is not None:
            return NO_NOISE
        budgets = [PrivacyBudget(self.home / BUDGET_FILE, *limit)] if limit is not None else []
        if self.holds_promise and self._promise is not None:
            promised = self._promise[0] * (1 + ROUNDING), self._promise[1]
            budgets.append(PrivacyBudget(self.home / "runs" / run / BUDGET_FILE, *promised))
        try:
            for charge in charges:
                refusals = [why for budget in budgets if (why := budget.refusal(charge.event))]
                if refusals:
                    return refusals[0]
                for budget in budgets:
                    budget.charge(charge)
        except (BudgetExceeded, BudgetDamaged) as error:
            return str(error)
        return ""

    @cached_property
    def _promise(self) -> tuple[float, float] | None:
        return silo_price(self.federation, self.node)


def charges_for(federation: Federation, node: str, run: str, request: Request) -> list[Charge]:
    """What answering a request would be charged: one round of the mechanism that protects the reply.

    Empty for requests whose replies no mechanism protects; a policy decides by other rules whether these may leave. A
    request is charged each time it is computed, whatever round it names: noise that is drawn again is another release.
    """
    if isinstance(request, Train):
        mechanism = update_mechanisms(federation).get(node)
        return [Charge.of(mechanism, federation.name, run, request.round, "update")] if mechanism is not None else []
    if isinstance(request, ShareKnowledge) and federation.kind == "federated":
        exchange = build_method(federation).exchange
        if exchange is not None and exchange.release is not None:
            return [Charge.of(exchange.release, federation.name, run, request.round, "knowledge")]
    return []
