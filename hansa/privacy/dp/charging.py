"""Which charges a request costs a silo's privacy budget (`hansa.privacy.dp.budget`), before it is answered."""

from hansa.config.federation import Federation
from hansa.config.method import build_method
from hansa.core.messages import Request, ShareKnowledge, Train
from hansa.privacy.dp.budget import Charge
from hansa.privacy.dp.prices import update_mechanisms


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
