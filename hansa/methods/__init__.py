"""One paper, one file. A method registers its settings under the name a federation file uses."""

from dataclasses import replace
from importlib import import_module
from pkgutil import iter_modules

from hansa import upload
from hansa.config import Federation, Node, protected
from hansa.errors import ConfigError
from hansa.method import Method
from hansa.pace import Together, cohort_size
from hansa.registry import Registry

METHODS: Registry[Method] = Registry("method")

for _module in iter_modules(__path__):  # every module registers itself above
    import_module(f"{__name__}.{_module.name}")

from hansa.methods.controllers import Layers, of_added  # noqa: E402
from hansa.methods.fedavg import BySamples, Mean  # noqa: E402
from hansa.methods.fedkc import FedKC  # noqa: E402
from hansa.methods.fedmix import FedMix  # noqa: E402
from hansa.methods.fedopt import server_optimiser  # noqa: E402
from hansa.methods.moon import Moon  # noqa: E402
from hansa.methods.robust import Krum, aggregation  # noqa: E402

SAFE_COHORT = 3  # two would know each other's update from the sum
CLASSIFIERS = (FedKC, FedMix, Moon)  # they look at the representation of a whole text


def build(federation: Federation, node: Node | None = None) -> Method:
    """The method a federation file asks for: the named paper, then the slots the file fills itself. A ``node`` may have
    a method and a server of its own; how models meet on the tree is the whole federation's."""
    method = METHODS.build(federation.method)
    if node is not None and node.method is not None:
        own = METHODS.build(node.method)
        method = replace(own, tree=own.tree or method.tree)
    if isinstance(method.scope, Layers) and not method.scope.layers:
        method = replace(method, scope=of_added(federation.model))
    server = node.server if node is not None and node.server is not None else federation.server
    if server is not None:
        method = replace(method, server=server_optimiser(server))
    if federation.aggregate is not None:
        weigh, aggregate = aggregation(federation.aggregate, len(federation.silos))
        if federation.method.name == "dga" and federation.aggregate.weights.by != "loss":
            raise ConfigError(
                "method 'dga' weighs silos by their loss, but aggregate.weights says "
                f"'{federation.aggregate.weights.by}': leave aggregate.weights out, or use method 'fedavg'"
            )
        if method.aggregate.needs == "each" or federation.method.name == "fedbuff":
            raise ConfigError(
                f"method '{federation.method.name}' has an aggregation of its own: leave 'aggregate' out "
                "(its settings stand below 'method')"
            )
        method = replace(method, weigh=weigh, aggregate=aggregate)
    if federation.upload.steps:
        method = replace(method, upload=upload.build(federation.upload))
        _refuse_with_uploads(federation, method)
    if federation.method.name == "fedbuff":
        _refuse_with_fedbuff(federation)
    if method.exchange is not None:
        _refuse_with_exchange(federation)
    if federation.secure is not None:
        _refuse_with_secure(federation, method)
    return method


def _refuse_with_secure(federation: Federation, method: Method) -> None:
    """Under masks there is a sum of whole updates, with weights that are known before."""
    name = federation.method.name
    if not isinstance(method.aggregate, Mean):
        raise ConfigError(
            f"'secure' hides each update in the sum, but the aggregation of '{name}' must see each by itself: "
            "leave one of the two out"
        )
    if not isinstance(method.weigh, BySamples) or not isinstance(method.pace, Together):
        raise ConfigError(
            f"'secure' needs weights and a cohort that are known before anybody trains, and method '{name}' has not: "
            "use weights by samples (or uniform), or leave 'secure' out"
        )
    if federation.upload.steps:
        raise ConfigError("'secure' adds whole updates under masks: leave 'upload' out")
    if method.tree is not None or any(node.silos for node in federation.silos.values()):
        raise ConfigError("'secure' works in a flat federation: the silos must stand directly below 'silos'")
    fewest = cohort_size(federation.participation, len(federation.silos))
    if fewest < SAFE_COHORT:
        raise ConfigError(
            f"'secure' needs a cohort of at least {SAFE_COHORT} silos to hide in, and {fewest} take part in a round"
        )


def _refuse_with_exchange(federation: Federation) -> None:
    name = federation.method.name
    if any(node.silos for node in federation.silos.values()):
        raise ConfigError(
            f"method '{name}' has silos that tell one another what they know, in one cohort: "
            "the silos must stand directly below 'silos'"
        )
    if cohort_size(federation.participation, len(federation.silos)) < 2 and federation.kind == "federated":
        raise ConfigError(
            f"method '{name}' has silos that hear one another, and one takes part in a round: raise "
            "participation.count or .share to two silos or more"
        )
    private = sorted(protected(federation))
    if private and federation.method.settings.get("noise") is None:
        raise ConfigError(
            f"privacy: the noise of silo '{private[0]}' covers its updates, not what method '{name}' has it tell the "
            "others: use fedkc with noise of its own ('noise: {multiplier: 1}'), or leave privacy out"
        )


def _refuse_with_uploads(federation: Federation, method: Method) -> None:
    inner = any(node.silos for node in federation.silos.values())
    if method.upload.both and (inner or federation.method.name == "fedbuff"):
        what = "federations of federations" if inner else "method 'fedbuff'"
        raise ConfigError(f"upload: 'both' needs one federation that remembers what each silo sent; not for {what}")
    if method.upload.selects and method.tree is not None:
        raise ConfigError(
            f"upload: on a tree, '{method.name}' compares whole layers: leave no tensors out (codes work)"
        )
    if method.upload.both and method.exchange is not None:
        raise ConfigError(
            f"upload: 'both' sends silos some tensors only, and method '{federation.method.name}' needs the whole "
            "model before they train: leave 'both' out"
        )
    private = sorted(protected(federation))
    if method.upload.selects and private:
        raise ConfigError(
            f"upload: which tensors leave tells about the data; the noise of silo '{private[0]}' does not cover it: "
            "leave the choice of tensors out, or privacy; codes (top-k, int8, int4, bf16, rows) go with it"
        )
    if method.upload.selects and isinstance(method.aggregate, Krum):
        raise ConfigError(
            "'krum' compares whole updates, but 'upload' leaves tensors out, and others at every silo: "
            "use rule 'median' or 'trimmed-mean', which look at every tensor by itself"
        )


def _refuse_with_fedbuff(federation: Federation) -> None:
    part = federation.participation
    if part.count is not None or part.share < 1.0:
        raise ConfigError(
            "method 'fedbuff' has every silo at work all the time: leave participation.share and .count out"
        )
    if any(node.silos for node in federation.silos.values()):
        raise ConfigError("method 'fedbuff' works in a flat federation: the silos must stand directly below 'silos'")
    simulate = federation.simulate
    if not simulate.usual or not all(simulate.delay.values()):
        raise ConfigError("method 'fedbuff' goes by the clock: simulate.delay and simulate.usual must be above 0")
    if federation.train.keep_optimizer or federation.train.samples.adapt is not None:
        raise ConfigError(
            "method 'fedbuff' has silos that keep nothing: leave train.keep_optimizer and samples.adapt out"
        )
    if federation.train.schedule.kind != "constant":
        raise ConfigError(
            "method 'fedbuff' has no common rounds at the silos: leave train.schedule out (server.schedule works)"
        )
