"""The privacy price of a federation's releases, for the preview, the policy, the ledger and the report.

Every price comes from the mechanism that protects the release (`hansa.core.mechanism`), never from a setting.
"""

from hansa.config.federation import Federation
from hansa.config.method import build_method
from hansa.config.nodes import repeats
from hansa.config.tree import protected
from hansa.core.mechanism import Mechanism
from hansa.privacy.dp.accounting import Spent, price
from hansa.privacy.dp.distributed import distributed_mechanism
from hansa.privacy.dp.updates import UpdateMechanism


def update_mechanisms(federation: Federation) -> dict[str, Mechanism]:
    """Silo → the mechanism on its updates or on their sum, for the silos with differential privacy."""
    found: dict[str, Mechanism] = {}
    if (distributed := distributed_mechanism(federation)) is not None:
        found |= dict.fromkeys(federation.silos, distributed)
    return found | {name: UpdateMechanism(settings) for name, settings in protected(federation).items()}


def update_prices(federation: Federation, rounds: int) -> dict[str, Spent]:
    """Silo → the price of its updates after ``rounds`` rounds of the root, if it took part in all of them."""
    times = repeats(federation.silos)
    return {name: price(mechanism, rounds * times[name]) for name, mechanism in update_mechanisms(federation).items()}


def exchange_price(federation: Federation, rounds: int) -> Spent | None:
    """The price of the knowledge that a silo shares; None if it shares none, or shares it without a mechanism."""
    if federation.kind != "federated":
        return None
    exchange = build_method(federation).exchange
    return price(exchange.release, rounds) if exchange is not None and exchange.release is not None else None
