"""What the releases of a federation cost in privacy.

Asked of the mechanisms, for preview, policy, ledger and report.
"""

from hansa.config.federation import Federation
from hansa.config.method import build_method
from hansa.config.nodes import repeats
from hansa.config.tree import protected
from hansa.privacy.dp.accounting import Spent, price
from hansa.privacy.dp.updates import UpdateMechanism


def update_prices(federation: Federation, rounds: int) -> dict[str, Spent]:
    """The price to each silo with privacy after so many rounds at the root, had it taken part in all of them."""
    times = repeats(federation.silos)
    return {
        name: price(UpdateMechanism(settings), rounds * times[name]) for name, settings in protected(federation).items()
    }


def exchange_price(federation: Federation, rounds: int) -> Spent | None:
    """The price of what silos share before training; None if nothing is shared, or it is shared without noise."""
    if federation.kind != "federated":
        return None
    exchange = build_method(federation).exchange
    return price(exchange.release, rounds) if exchange is not None and exchange.release is not None else None
