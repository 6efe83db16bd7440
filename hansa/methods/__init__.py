"""One paper, one file. A method registers its settings under the name a federation file uses."""

from dataclasses import replace

from hansa.config import Federation
from hansa.errors import ConfigError
from hansa.method import Method
from hansa.registry import Registry

METHODS: Registry[Method] = Registry("method")

# Each module registers itself above; the imports stand below because they need METHODS.
from hansa.methods import alone, dga, fedavg, fedopt, fedprox, robust  # noqa: E402, F401
from hansa.methods.fedopt import server_optimiser  # noqa: E402
from hansa.methods.robust import aggregation  # noqa: E402


def build(federation: Federation) -> Method:
    """The method a federation file asks for: the named paper, then the slots the file fills itself."""
    method = METHODS.build(federation.method)
    if federation.server is not None:
        method = replace(method, server=server_optimiser(federation.server))
    if federation.aggregate is not None:
        weigh, aggregate = aggregation(federation.aggregate, len(federation.silos))
        if federation.method.name == "dga" and federation.aggregate.weights.by != "loss":
            raise ConfigError(
                "method 'dga' weighs silos by their loss, but aggregate.weights says "
                f"'{federation.aggregate.weights.by}': leave aggregate.weights out, or use method 'fedavg'"
            )
        method = replace(method, weigh=weigh, aggregate=aggregate)
    return method
