"""Combinations that make no sense, refused before anything is loaded: what was asked for, why not, what to do.

They are judged by what a method *is*, slot by slot, never by its name, so that a method of your own is held to the same
rules. `methods.build` asks here whoever builds a method: the command line, a coordinator, and every silo for itself.
"""

from hansa.config.federation import Federation
from hansa.config.nodes import Node
from hansa.config.tree import is_tree, protected
from hansa.core.errors import ConfigError
from hansa.core.method import Method
from hansa.core.participation import BufferedRegions, Synchronous, cohort_size
from hansa.methods.alone import ShareNothing
from hansa.methods.dga import ByLoss
from hansa.methods.fedavg import BySamples, Mean
from hansa.methods.fedbuff import Buffered
from hansa.methods.robust import Krum
from hansa.privacy.secure_aggregation.protocol import SAFE_COHORT


def refuse(federation: Federation, method: Method, node: Node | None = None) -> None:
    """``method``: the root's, or that of a ``node``."""
    if isinstance(method.participation, Buffered | BufferedRegions):
        _by_the_clock(federation, method)
    if federation.upload.steps:
        _uploads(federation, method)
    if method.exchange is not None:
        _exchange(federation, method)
    if isinstance(method.aggregate, Krum):
        _krum(federation, method.aggregate, node)
    if federation.secure_aggregation is not None:
        _secure(federation, method)
    if federation.personal is not None:
        _personal(federation, method)


def refuse_aggregation(federation: Federation, method: Method) -> None:
    """``method`` as its paper has it, before the file's ``aggregate`` takes the place of its own."""
    assert federation.aggregate is not None
    by = federation.aggregate.weights.by
    if isinstance(method.weighting, ByLoss) and by != "loss":
        raise ConfigError(
            f"method '{method.name}' weighs silos by their loss, but aggregate.weights says '{by}': "
            "leave aggregate.weights out, or use method 'fedavg'"
        )
    if not isinstance(method.aggregate, Mean):
        raise ConfigError(
            f"method '{method.name}' has an aggregation of its own: leave 'aggregate' out "
            "(its settings stand below 'method')"
        )


def refuse_node(name: str, own: Method, method: Method) -> None:
    """What a node may not have for itself; ``method``: the root's."""
    if isinstance(own.participation, Buffered) and own.participation != method.participation:
        raise ConfigError(
            f"silos.{name}.method is '{own.name}', which says who is waited for: that is the root's business, give it "
            "to the whole federation"
        )
    if own.exchange != method.exchange:
        raise ConfigError(
            f"silos.{name}.method is '{own.name}', but what silos tell one another is the same for all "
            f"('{method.name}' at the root): give it to the whole federation"
        )


def _secure(federation: Federation, method: Method) -> None:
    """Under masks there is a sum of whole updates, with weights that are known before."""
    if not isinstance(method.aggregate, Mean):
        raise ConfigError(
            f"'secure_aggregation' hides each update in the sum, but the aggregation of '{method.name}' must see each by itself: "
            "leave one of the two out"
        )
    if not isinstance(method.weighting, BySamples) or not isinstance(method.participation, Synchronous):
        raise ConfigError(
            f"'secure_aggregation' needs weights and a cohort that are known before anybody trains, and method '{method.name}' has "
            "not: use weights by samples (or uniform), or leave 'secure_aggregation' out"
        )
    if federation.upload.steps:
        raise ConfigError("'secure_aggregation' adds whole updates under masks: leave 'upload' out")
    if method.tree is not None or is_tree(federation):
        raise ConfigError(
            "'secure_aggregation' works in a flat federation: the silos must stand directly below 'silos'"
        )
    fewest = cohort_size(federation.participation, len(federation.silos))
    if fewest < SAFE_COHORT:
        raise ConfigError(
            f"'secure_aggregation' needs a cohort of at least {SAFE_COHORT} silos to hide in, and {fewest} take part in a round"
        )


def _exchange(federation: Federation, method: Method) -> None:
    if is_tree(federation):
        raise ConfigError(
            f"method '{method.name}' has silos that tell one another what they know, in one cohort: "
            "the silos must stand directly below 'silos'"
        )
    if cohort_size(federation.participation, len(federation.silos)) < 2 and federation.kind == "federated":
        raise ConfigError(
            f"method '{method.name}' has silos that hear one another, and one takes part in a round: raise "
            "participation.count or .share to two silos or more"
        )
    private = sorted(protected(federation))
    if private and getattr(method.exchange, "noise", None) is None:
        raise ConfigError(
            f"privacy: the noise of silo '{private[0]}' covers its updates, not what method '{method.name}' has it "
            "tell the others: use fedkc with noise of its own ('noise: {multiplier: 1}'), or leave privacy out"
        )


def _uploads(federation: Federation, method: Method) -> None:
    inner, waits = is_tree(federation), isinstance(method.participation, Synchronous)
    if method.upload.both and (inner or not waits):
        what = "federations of federations" if inner else f"method '{method.name}'"
        raise ConfigError(f"upload: 'both' needs one federation that remembers what each silo sent; not for {what}")
    if method.upload.selects and method.tree is not None:
        raise ConfigError(
            f"upload: on a tree, '{method.name}' compares whole layers: leave no tensors out (codes work)"
        )
    if method.upload.both and method.exchange is not None:
        raise ConfigError(
            f"upload: 'both' sends silos some tensors only, and method '{method.name}' needs the whole model before "
            "they train: leave 'both' out"
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


def _krum(federation: Federation, krum: Krum, node: Node | None) -> None:
    """Wherever updates meet: at the root, and in every region."""
    below = federation.silos if node is None else node.silos
    rules = federation.participation if node is None else node.participation or federation.participation
    needed, cohort = 2 * krum.bad + 3, cohort_size(rules, len(below))
    if below and cohort < needed and federation.kind == "federated":
        raise ConfigError(
            f"krum with {krum.bad} bad silos needs at least {needed} silos, and {cohort} take part in a round: lower "
            "'bad', or use 'median'"
        )


def _by_the_clock(federation: Federation, method: Method) -> None:
    simulate = federation.simulate
    if not all((simulate.usual, *simulate.delay.values())):
        raise ConfigError(
            f"method '{method.name}' goes by the clock: simulate.delay and simulate.usual must be above 0"
        )
    if isinstance(method.participation, BufferedRegions):
        return
    part = federation.participation
    if part.count is not None or part.share < 1.0:
        raise ConfigError(
            f"method '{method.name}' has every silo at work all the time: leave participation.share and .count out"
        )
    if is_tree(federation):
        raise ConfigError(
            f"method '{method.name}' works in a flat federation: the silos must stand directly below 'silos'"
        )
    if federation.train.keep_optimizer or federation.train.samples.adapt is not None:
        raise ConfigError(
            f"method '{method.name}' has silos that keep nothing: leave train.keep_optimizer and samples.adapt out"
        )
    if federation.train.schedule.kind != "constant":
        raise ConfigError(
            f"method '{method.name}' has no common rounds at the silos: leave train.schedule out "
            "(server.schedule works)"
        )


def _personal(federation: Federation, method: Method) -> None:
    if method.tree is not None:
        raise ConfigError(f"method '{method.name}' gives every node a model of its own: leave 'personal' out")
    assert federation.personal is not None
    if not federation.personal.nearby or isinstance(method.scope, ShareNothing):
        return
    private = sorted(protected(federation))
    if private:
        raise ConfigError(
            f"personal.nearby compares the updates of the silos' own models, and the noise of silo '{private[0]}' does "
            "not cover that one: leave 'nearby' out, or privacy"
        )
    if federation.secure_aggregation is not None:
        raise ConfigError(
            "personal.nearby compares each silo's update with the others', and 'secure_aggregation' hides them in the sum: "
            "leave one of the two out"
        )
