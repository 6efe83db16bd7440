"""Combinations of settings that make no sense, refused before anything is loaded.

Each refusal says what was asked for, why it cannot be, and what to do. They read what the slots of a method declare
(`hansa.core.method`), never its name or the class of a slot, so that a method of your own is held to the same rules.
`build_method` asks here for the command line, for a coordinator, and for every silo by itself.
"""

from hansa.config.federation import Federation
from hansa.config.nodes import Node
from hansa.config.sections import MIN_MASKED_COHORT
from hansa.config.tree import is_tree, protected
from hansa.core.errors import ConfigError
from hansa.core.method import Method, weighs_equally
from hansa.core.participation import cohort_size
from hansa.tasks.base import TASKS, NamedSums

PROTOCOLS = {"participation": "hansa/core/participation.py", "upload": "hansa/core/compression.py"}
DECLARATIONS = {
    "participation": ("synchronous", "buffer", "on_trees", "state"),
    "scope": ("shares_nothing",),
    "objective": ("needs_text_vectors", "state"),
    "exchange": ("description", "release", "min_samples", "needs_text_vectors"),
    "upload": ("selects", "keeps_local", "both_ways", "lossy"),
    "weighting": ("known_before_training", "replaceable"),
    "aggregator": ("linear", "per_tensor", "min_cohort", "replaceable"),
    "hierarchy": ("order", "key_layers", "filter", "keys_travel", "forwards_layers", "compares_moves"),
}


def check_slots(method: Method) -> None:
    """Refuse a method whose slots lack a declaration, or contradict each other."""
    for slot, names in DECLARATIONS.items():
        value = getattr(method, slot)
        missing = next((name for name in names if value is not None and not hasattr(value, name)), None)
        if missing is not None:
            raise ConfigError(
                f"method '{method.name}': its {slot} {type(value).__name__} does not declare '{missing}'; add it "
                "({PROTOCOLS.get(slot, 'hansa/core/method.py')} says what it means)"
            )
    if method.hierarchy is not None and not method.participation.on_trees:
        raise ConfigError(
            f"method '{method.name}': its participation {type(method.participation).__name__} does not work on "
            "trees, and its hierarchy needs one: replace one of the two"
        )
    if method.hierarchy is not None and method.exchange is not None:
        raise ConfigError(
            f"method '{method.name}' has both a hierarchy and an exchange, and on a tree there is no cohort whose "
            "silos could hear one another: leave one of the two out"
        )
    if method.shared_state is not None and (method.hierarchy is not None or not method.participation.synchronous):
        raise ConfigError(
            f"method '{method.name}' has a shared state, which needs synchronous rounds in a flat federation: leave "
            "out its hierarchy, or use a synchronous participation"
        )


def refuse(federation: Federation, method: Method, node: Node | None = None) -> None:
    """Refuse what does not go with a method: the root's, or that of a ``node``."""
    if method.participation.buffer:
        _buffered(federation, method)
    _uploads(federation, method)
    if method.exchange is not None:
        _exchange(federation, method)
    if method.shared_state is not None:
        _shared_state(federation, method)
    _cohort(federation, method, node)
    if federation.secure_aggregation is not None:
        _secure_aggregation(federation, method)
    if federation.personal is not None:
        _personal(federation, method)


def refuse_aggregation(federation: Federation, method: Method) -> None:
    """Refuse an ``aggregate`` section that cannot take the place of the method's own aggregation."""
    assert federation.aggregate is not None
    weights = federation.aggregate.weights
    by = weights.by if weights is not None else ""
    if by and not method.weighting.replaceable and (method.weighting.known_before_training or by != "loss"):
        raise ConfigError(
            f"method '{method.name}' has weights of its own, but aggregate.weights says '{by}': "
            "leave aggregate.weights out, or use method 'fedavg'"
        )
    if not method.aggregator.replaceable:
        raise ConfigError(
            f"method '{method.name}' has an aggregation of its own: leave 'aggregate' out "
            "(its settings stand below 'method')"
        )


def refuse_node(name: str, own: Method, method: Method) -> None:
    """Refuse what a node may not have for itself; ``method``: the root's."""
    if not own.participation.on_trees and own.participation != method.participation:
        raise ConfigError(
            f"silos.{name}.method is '{own.name}', which decides who takes part: that is the root's decision, give it "
            "to the whole federation"
        )
    if own.exchange != method.exchange:
        raise ConfigError(
            f"silos.{name}.method is '{own.name}', but what silos share with one another is the same for all "
            f"('{method.name}' at the root): give it to the whole federation"
        )
    if (own.shared_state is None) != (method.shared_state is None):
        raise ConfigError(
            f"silos.{name}.method is '{own.name}', but the state that silos and server share is the same for all "
            f"('{method.name}' at the root): give it to the whole federation"
        )


def _secure_aggregation(federation: Federation, method: Method) -> None:
    """Masks add up whole updates, with weights that are known before training."""
    settings = federation.secure_aggregation
    if not method.aggregator.linear:
        raise ConfigError(
            f"'secure_aggregation' hides each update in the sum, but the aggregation of '{method.name}' must see each "
            "by itself: leave one of the two out"
        )
    if not method.weighting.known_before_training or not method.participation.synchronous:
        raise ConfigError(
            f"'secure_aggregation' needs weights and a cohort that are known before training, which method "
            f"'{method.name}' does not have: use weights by samples (or uniform), or leave 'secure_aggregation' out"
        )
    if method.shared_state is not None:
        raise ConfigError(
            f"'secure_aggregation' masks the update alone, and method '{method.name}' also sends a state to the "
            "server: leave one of the two out"
        )
    if method.upload.selects or method.upload.lossy:
        raise ConfigError(
            "'secure_aggregation' adds whole updates under masks: leave 'upload' out, or use a method without "
            "compression"
        )
    if method.hierarchy is not None or is_tree(federation):
        raise ConfigError(
            "'secure_aggregation' works in a flat federation: the silos must stand directly below 'silos'"
        )
    if settings is not None and settings.noise is not None:
        _distributed_noise(federation, method)
    if settings is not None and settings.metrics:
        _masked_metrics(federation)
    fewest = cohort_size(federation.participation, len(federation.silos))
    if fewest < MIN_MASKED_COHORT:
        raise ConfigError(
            f"'secure_aggregation' needs a cohort of at least {MIN_MASKED_COHORT} silos to hide in, and {fewest} take "
            "part in a round: raise participation.count or .share, or leave 'secure_aggregation' out"
        )


def _distributed_noise(federation: Federation, method: Method) -> None:
    """Noise in shares covers a plain sum of clipped updates, and nothing else that silos send."""
    if not weighs_equally(method.weighting):
        raise ConfigError(
            f"'secure_aggregation.noise' bounds what one silo adds to the sum, and the weights of '{method.name}' "
            "follow from sample counts: set aggregate: {weights: uniform}"
        )
    if is_tree(federation):
        raise ConfigError(
            "'secure_aggregation.noise' works in a flat federation: the silos must stand directly below 'silos'"
        )
    if method.exchange is not None and method.exchange.release is None:
        raise ConfigError(
            f"'secure_aggregation.noise' covers the sum of the updates, not what method '{method.name}' has silos "
            "share with one another: use another method, or leave the noise out"
        )
    private = sorted(protected(federation))
    if private:
        raise ConfigError(
            f"silo '{private[0]}' has 'privacy' and the federation has 'secure_aggregation.noise': both add noise to "
            "the same update; leave one of the two out"
        )
    if federation.personal is not None and federation.personal.nearby:
        raise ConfigError(
            "personal.nearby compares the updates of the silos' own models, and 'secure_aggregation.noise' does not "
            "cover them: leave one of the two out"
        )


def _masked_metrics(federation: Federation) -> None:
    """Scores under masks are sums over the silos of one flat federation, of quantities that the task names."""
    if is_tree(federation):
        raise ConfigError(
            "'secure_aggregation.metrics' works in a flat federation: the silos must stand directly below 'silos'"
        )
    if federation.personal is not None:
        raise ConfigError(
            "'secure_aggregation.metrics' hides each silo's scores in a sum, and 'personal' reports them silo by silo: "
            "leave one of the two out"
        )
    if not isinstance(TASKS.build(federation.task), NamedSums):
        raise ConfigError(
            f"'secure_aggregation.metrics' needs a task that names its sums before it sees data, and task "
            f"'{federation.task.name}' has no method 'sum_names': add it, or leave 'metrics' out"
        )


def _exchange(federation: Federation, method: Method) -> None:
    if is_tree(federation):
        raise ConfigError(
            f"method '{method.name}' has silos share knowledge with one another, in one cohort: "
            "the silos must stand directly below 'silos'"
        )
    if cohort_size(federation.participation, len(federation.silos)) < 2 and federation.kind == "federated":
        raise ConfigError(
            f"method '{method.name}' has silos share knowledge with one another, and one takes part in a round: raise "
            "participation.count or .share to two silos or more"
        )
    private = sorted(protected(federation))
    if private and method.exchange is not None and method.exchange.release is None:
        raise ConfigError(
            f"privacy: the noise of silo '{private[0]}' covers its updates, not what method '{method.name}' has it "
            "share with others: use fedkc with noise of its own ('noise: {multiplier: 1}'), or leave privacy out"
        )


def _shared_state(federation: Federation, method: Method) -> None:
    if method.upload.selects:
        raise ConfigError(
            f"upload: method '{method.name}' shares a state with the server that follows from whole updates, and "
            "'upload' leaves tensors out: leave the choice of tensors out (quantisation works)"
        )
    if is_tree(federation):
        raise ConfigError(
            f"method '{method.name}' shares a state between the server and its silos: the silos must stand directly "
            "below 'silos'"
        )
    private = sorted(protected(federation))
    if private:
        raise ConfigError(
            f"privacy: the noise of silo '{private[0]}' covers its updates, not the state that method '{method.name}' "
            "has it send to the server: use another method, or leave privacy out"
        )


def _uploads(federation: Federation, method: Method) -> None:
    inner = is_tree(federation)
    if method.upload.both_ways and (inner or not method.participation.synchronous):
        what = "a tree" if inner else f"method '{method.name}'"
        raise ConfigError(
            f"upload: 'both' needs one server that remembers what each silo sent, which {what} does not have: leave "
            "'both' out"
        )
    if method.upload.selects and method.hierarchy is not None:
        raise ConfigError(
            f"upload: on a tree, '{method.name}' compares whole layers: leave no tensors out (quantisation works)"
        )
    if method.upload.both_ways and method.exchange is not None:
        raise ConfigError(
            f"upload: 'both' sends silos some tensors only, and method '{method.name}' needs the whole model before "
            "they train: leave 'both' out"
        )
    private = sorted(protected(federation))
    if method.upload.selects and private:
        raise ConfigError(
            f"upload: which tensors leave tells about the data; the noise of silo '{private[0]}' does not cover it: "
            "leave the choice of tensors out, or privacy; other compressors (top-k, int8, int4, bf16, rows) go with it"
        )
    if method.upload.selects and not method.aggregator.per_tensor:
        raise ConfigError(
            f"the aggregation of '{method.name}' compares whole updates, but 'upload' leaves tensors out, different "
            "ones at each silo: use rule 'median' or 'trimmed-mean', which look at every tensor by itself"
        )


def _cohort(federation: Federation, method: Method, node: Node | None) -> None:
    """Wherever updates are combined, at the root and in every region, there must be enough of them."""
    below = federation.silos if node is None else node.silos
    rules = federation.participation if node is None else node.participation or federation.participation
    needed, cohort = method.aggregator.min_cohort, cohort_size(rules, len(below))
    if below and cohort < needed and federation.kind == "federated":
        raise ConfigError(
            f"the aggregation of '{method.name}' ({type(method.aggregator).__name__}) needs at least "
            f"{needed} silos, and {cohort} take part in a round: "
            "change its settings, or use 'median'"
        )


def _buffered(federation: Federation, method: Method) -> None:
    simulate = federation.simulate
    if not all((simulate.default_delay, *simulate.delay.values())):
        raise ConfigError(
            f"method '{method.name}' goes by the virtual clock: simulate.delay and .default_delay must be above 0"
        )
    if method.participation.on_trees:
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
            f"method '{method.name}' keeps no state at the silos between rounds: leave train.keep_optimizer "
            "and samples.adapt out"
        )
    if federation.train.schedule.kind != "constant":
        raise ConfigError(
            f"method '{method.name}' has no common rounds at the silos: leave train.schedule out "
            "(server.schedule works)"
        )


def _personal(federation: Federation, method: Method) -> None:
    if method.hierarchy is not None:
        raise ConfigError(f"method '{method.name}' gives every node a model of its own: leave 'personal' out")
    assert federation.personal is not None
    if not federation.personal.nearby or method.scope.shares_nothing:
        return
    private = sorted(protected(federation))
    if private:
        raise ConfigError(
            f"personal.nearby compares the updates of the silos' own models, and the noise of silo '{private[0]}' does "
            "not cover that one: leave 'nearby' out, or privacy"
        )
    if federation.secure_aggregation is not None:
        raise ConfigError(
            "personal.nearby compares each silo's update with the others', and 'secure_aggregation' hides them in the "
            "sum: leave one of the two out"
        )
