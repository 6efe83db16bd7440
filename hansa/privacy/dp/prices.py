"""The privacy price of a federation's releases, for the preview, the policy, the ledger and the report.

Every price comes from the mechanism that protects the release (`hansa.core.mechanism`), never from a setting.
"""

from math import isfinite

from hansa.config.asynchrony import most_trainings
from hansa.config.federation import Federation
from hansa.config.method import build_method
from hansa.config.nodes import leaves
from hansa.config.tree import protected
from hansa.core.mechanism import Event
from hansa.privacy.dp.accounting import Spent, composed, price
from hansa.privacy.dp.distributed import DistributedMechanism, distributed_mechanism
from hansa.privacy.dp.units import UnitMechanism
from hansa.privacy.dp.updates import UpdateMechanism

UpdateNoise = UpdateMechanism | UnitMechanism | DistributedMechanism


def update_mechanisms(federation: Federation) -> dict[str, UpdateNoise]:
    """Silo → the mechanism on its updates, or on the sum of all, for the silos with differential privacy."""
    distributed = distributed_mechanism(federation)
    if distributed is not None:  # the federation file has no other noise beside it
        return dict.fromkeys(leaves(federation.silos), distributed)
    return {
        name: UpdateMechanism(settings) if settings.unit == "silo" else UnitMechanism(settings)
        for name, settings in protected(federation).items()
    }


def update_prices(federation: Federation, rounds: int) -> dict[str, Spent]:
    """Silo → the price of its updates after ``rounds`` rounds of the root, if it trained as often as it can."""
    return {
        name: price(mechanism, most_trainings(federation, name, rounds))
        for name, mechanism in update_mechanisms(federation).items()
    }


def seeded_noise(federation: Federation) -> list[str]:
    """What a federation file has noise from the seed for, which anyone who knows the seed can subtract."""
    found = [f"the updates of '{name}'" for name, one in update_mechanisms(federation).items() if one.seeded]
    exchange = build_method(federation).exchange if federation.kind == "federated" else None
    if exchange is not None and exchange.release is not None and exchange.release.seeded:
        found.append("shared knowledge")
    return found


def exchange_price(federation: Federation, rounds: int) -> Spent | None:
    """The price of the knowledge that a silo shares; None if it shares none, or shares it without a mechanism."""
    if federation.kind != "federated":
        return None
    exchange = build_method(federation).exchange
    return price(exchange.release, rounds) if exchange is not None and exchange.release is not None else None


def silo_price(federation: Federation, node: str, at: float | None = None) -> tuple[float, float] | None:
    """The ε, with its δ, that a whole run costs a silo: updates and shared knowledge together; None: there is no ε.

    ``at``: the δ; default: the smallest that the settings name.
    """
    mechanism = update_mechanisms(federation).get(node)
    if mechanism is None or federation.kind != "federated":
        return None
    exchange = build_method(federation).exchange
    events: list[Event] = [mechanism.event(most_trainings(federation, node, federation.rounds))]
    delta = mechanism.delta
    if exchange is not None and exchange.release is not None:
        events, delta = [*events, exchange.release.event(federation.rounds)], min(delta, exchange.release.delta)
    delta = at or delta
    epsilon = composed(events, delta)
    return (epsilon, delta) if isfinite(epsilon) else None


def run_price(federation: Federation) -> tuple[float, float] | None:
    """The largest `silo_price` of a run; None if some silo's updates carry no noise."""
    found = [silo_price(federation, name) for name in leaves(federation.silos)]
    given = [price for price in found if price is not None]
    return max(given) if given and len(given) == len(found) else None
