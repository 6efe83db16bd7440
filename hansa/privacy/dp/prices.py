"""The privacy price of a federation's releases, for the preview, the policy, the ledger and the report.

Every price comes from the mechanism that protects the release (`hansa.core.mechanism`), never from a setting.
"""

from math import isfinite

from hansa.config.federation import Federation
from hansa.config.method import build_method
from hansa.config.nodes import leaves, repeats
from hansa.config.tree import protected
from hansa.core.mechanism import Event
from hansa.privacy.dp.accounting import Spent, composed, price
from hansa.privacy.dp.units import UnitMechanism
from hansa.privacy.dp.updates import UpdateMechanism


def update_mechanisms(federation: Federation) -> dict[str, UpdateMechanism | UnitMechanism]:
    """Silo → the mechanism on its updates, for the silos with differential privacy."""
    return {
        name: UpdateMechanism(settings) if settings.unit == "silo" else UnitMechanism(settings)
        for name, settings in protected(federation).items()
    }


def update_prices(federation: Federation, rounds: int) -> dict[str, Spent]:
    """Silo → the price of its updates after ``rounds`` rounds of the root, if it took part in all of them."""
    times = repeats(federation.silos)
    return {name: price(mechanism, rounds * times[name]) for name, mechanism in update_mechanisms(federation).items()}


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


def run_price(federation: Federation) -> tuple[float, float] | None:
    """The largest ε, with its δ, that a whole run costs a silo: updates and shared knowledge together.

    None if some silo's updates carry no noise, or nothing does: then there is no ε.
    """
    mechanisms, times = update_mechanisms(federation), repeats(federation.silos)
    if not mechanisms or set(mechanisms) != set(leaves(federation.silos)) or federation.kind != "federated":
        return None
    exchange, found = build_method(federation).exchange, list[tuple[float, float]]()
    for name, mechanism in mechanisms.items():
        events: list[Event] = [mechanism.event(federation.rounds * times[name])]
        delta = mechanism.delta
        if exchange is not None and exchange.release is not None:
            events, delta = [*events, exchange.release.event(federation.rounds)], min(delta, exchange.release.delta)
        found.append((composed(events, delta), delta))
    worst = max(found)
    return worst if isfinite(worst[0]) else None
