"""Combinations of settings that make no sense, refused before anything is loaded.

Each refusal says what was asked for, why it cannot be, and what to do. They read what the slots of a method declare
(`hansa.core.method`), never its name or the class of a slot, so that a method of your own is held to the same rules.
`build_method` asks here for the command line, for a coordinator, and for every silo by itself.
"""

from hansa.config.factors import LESS_CHOICE, refuse_factors
from hansa.config.federation import Federation
from hansa.config.masked_sums import check_metrics, check_noise
from hansa.config.nodes import Node, walk
from hansa.config.transfers import refuse_transfers
from hansa.config.tree import Family, is_tree, masked_families, mixtures, protected
from hansa.core.arrivals import BufferState
from hansa.core.errors import ConfigError
from hansa.core.method import Method
from hansa.core.participation import cohort_size

PROTOCOLS = {"participation": "hansa/core/participation.py", "upload": "hansa/core/compression.py"}
DECLARATIONS = {
    "participation": ("synchronous", "buffer", "most_per_child", "on_trees", "state"),
    "scope": ("shares_nothing",),
    "objective": ("needs_text_vectors", "state"),
    "exchange": ("description", "release", "min_samples", "needs_text_vectors"),
    "upload": ("selects", "keeps_local", "both_ways", "lossy"),
    "weighting": ("known_before_training", "replaceable"),
    "aggregator": ("linear", "per_tensor", "min_cohort", "replaceable"),
    "factors": ("restarts",),
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
                f"({PROTOCOLS.get(slot, 'hansa/core/method.py')} says what it means)"
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
        _buffered(federation, method, node)
    if node is None:
        _recorded(federation, method)
    _uploads(federation, method)
    if method.exchange is not None:
        _exchange(federation, method)
    if method.shared_state is not None:
        _shared_state(federation, method)
    refuse_factors(federation, method)
    refuse_transfers(federation, method)
    _units(federation, method)
    _cohort(federation, method, node)
    _mixtures(federation)
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
            "(its settings go under 'method')"
        )


def refuse_node(name: str, own: Method, method: Method, region: bool = False) -> None:
    """Refuse what a node, which may be a ``region``, may not have for itself; ``method``: the root's."""
    rule = own.participation  # a region keeps the works that are under way (region_rounds.py)
    buffered = region and rule.buffer and rule.state is BufferState and method.hierarchy is None
    if not own.participation.on_trees and own.participation != method.participation and not buffered:
        raise ConfigError(
            f"silos.{name}.method is '{own.name}', which decides who takes part: give it to the whole federation or "
            "to a region, not to a silo"
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
    if federation.participation.max_share is not None:
        raise ConfigError(
            "participation.max_share bounds weights at the server, and with 'secure_aggregation' each silo weighs its "
            "own update: leave one of the two out"
        )
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
    if method.hierarchy is not None:
        _masked_hierarchy(federation, method)
    settings = federation.secure_aggregation
    assert settings is not None
    if settings.noise is not None:
        check_noise(federation, method)
    if settings.metrics:
        check_metrics(federation)
    for family in masked_families(federation).values():
        where = f" below '{family.name}'" if family.name else ""
        if family.cohort < settings.min_cohort:
            raise ConfigError(
                f"'secure_aggregation' needs a cohort of at least {settings.min_cohort} silos to hide in, and "
                f"{family.cohort} take part in a round{where}: raise participation.count or .share, put more silos "
                "there, or leave 'secure_aggregation' out"
            )
        if family.cohort * settings.max_share < 1.0:
            raise ConfigError(
                f"secure_aggregation.max_share is {settings.max_share:g}, and {family.cohort} silos take part in a "
                f"round{where}, so that their weights cannot sum to one: set it to {1 / family.cohort:.3g} or more"
            )
        _same_work(family)


def _same_work(family: Family) -> None:
    """Refuse settings of single children: they could leave one update in the sum.

    A huge proximal term, a tiny clipping norm or a server rate near 0 for all others gives updates of zero.
    """
    first, *rest = family.children.items()
    for name, child in rest:
        for setting in ("method", "privacy", "server"):
            if getattr(child, setting) != getattr(first[1], setting):
                raise ConfigError(
                    f"'secure_aggregation' hides an update among others of the same kind, and '{first[0]}' and "
                    f"'{name}' have a different '{setting}': give all silos of a sum the same, or leave "
                    "'secure_aggregation' out"
                )


def _masked_hierarchy(federation: Federation, method: Method) -> None:
    """Where nodes have models of their own, the backbone is masked; every child must do the same work."""
    assert method.hierarchy is not None
    if method.hierarchy.filter is not None:
        raise ConfigError(
            f"'secure_aggregation' hides each update in the sum, but the filter of '{method.name}' must see each by "
            "itself: leave one of the two out"
        )
    own = federation.root is not None or any(node.silos and node.holds for _, node in walk(federation.silos))
    if own and method.hierarchy.order == "parallel":
        raise ConfigError(
            "'secure_aggregation' adds up the children's updates, and with method.order 'parallel' an inner node's own "
            "update would be one of them: use order 'sequential', or give inner nodes no data"
        )
    if federation.train.schedule.kind != "constant" or federation.train.schedule.warmup:
        raise ConfigError(
            "'secure_aggregation' on a tree of models needs a constant learning rate: the server tells each child its "
            "place in train.schedule, and a rate of 0 for the others would leave one update in the sum; leave "
            "train.schedule out"
        )


def _mixtures(federation: Federation) -> None:
    """An inner node that trains on its silos' text releases it without their noise, masks and policies."""
    for name, below in mixtures(federation).items():
        for silo, node in walk(below):
            kind = "privacy" if node.privacy is not None else "a policy" if node.policy is not None else ""
            if federation.secure_aggregation is not None:
                kind = kind or "secure aggregation"
            if kind and not node.silos and federation.kind == "federated":
                raise ConfigError(
                    f"'{name}' trains on the mixture of its silos' data, and '{silo}' below it has {kind}, which would "
                    f"not cover that training: give '{name}' data of its own ('train: FILE'), or leave 'mixture' out"
                )


def _exchange(federation: Federation, method: Method) -> None:
    if is_tree(federation):
        raise ConfigError(
            f"method '{method.name}' has silos share knowledge with one another, in one cohort: "
            "list all silos at the top level of 'silos', without regions"
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


def _units(federation: Federation, method: Method) -> None:
    """The gradient of each patient is bounded by itself, which an objective that mixes samples does not allow."""
    inside = [name for name, privacy in sorted(protected(federation).items()) if privacy.unit != "silo"]
    if inside and not getattr(method.objective, "task_loss_only", False):
        unit = protected(federation)[inside[0]].unit
        raise ConfigError(
            f"silos.{inside[0]}.privacy: 'unit: {unit}' bounds the gradient of each {unit} by itself, and the "
            f"objective of method '{method.name}' looks at more than the task's loss: use fedavg or fedprox, or 'unit: "
            "silo'"
        )
    if inside and not method.weighting.known_before_training:
        raise ConfigError(
            f"silos.{inside[0]}.privacy: with 'unit: {protected(federation)[inside[0]].unit}' the training loss does "
            f"not leave, and the weights of method '{method.name}' follow from it: use weights by samples, or uniform"
        )


def _shared_state(federation: Federation, method: Method) -> None:
    if method.upload.selects:
        raise ConfigError(
            f"upload: method '{method.name}' computes its server state from whole updates, and 'upload' sends only "
            f"some tensors: {LESS_CHOICE} (top-k, rows and quantisation work)"
        )
    if is_tree(federation):
        raise ConfigError(
            f"method '{method.name}' shares a state between the server and its silos: list all silos at the top level "
            "of 'silos', without regions"
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
            f"upload: '{method.name}' compares whole layers, and 'upload' sends only some tensors: {LESS_CHOICE} "
            "(quantisation works)"
        )
    if method.upload.both_ways and method.exchange is not None:
        raise ConfigError(
            f"upload: 'both' sends silos some tensors only, and method '{method.name}' needs the whole model before "
            "they train: leave 'both' out"
        )
    private = sorted(protected(federation))
    if method.upload.selects and private:
        raise ConfigError(
            f"upload: which tensors a silo sends reveals something about its data, and the noise of silo "
            f"'{private[0]}' does not cover that: {LESS_CHOICE}, or remove 'privacy' (other compressors work)"
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
            "change its settings, let more silos take part, or set aggregate: {rule: median}"
        )


def _recorded(federation: Federation, method: Method) -> None:
    """A recorded order of arrivals belongs to a method whose rounds end with arrivals."""
    recorded, rule = federation.simulate.arrivals, method.participation
    if recorded and (rule.synchronous or not rule.buffer or rule.on_trees):
        raise ConfigError(
            f"simulate.arrivals has an order of updates, and the rounds of method '{method.name}' do not end with "
            "arrivals: leave it out, or use the method of the run that recorded it"
        )
    if recorded and len(recorded) < federation.rounds:
        raise ConfigError(
            f"simulate.arrivals has {len(recorded)} rounds, and the file asks for {federation.rounds}: set rounds to "
            f"{len(recorded)}"
        )


def _buffered(federation: Federation, method: Method, node: Node | None) -> None:
    """Refuse what an asynchronous root, or a region with an asynchronous method of its own, cannot have."""
    simulate = federation.simulate
    if not all((simulate.default_delay, *simulate.delay.values())):
        raise ConfigError(
            f"method '{method.name}' is simulated in virtual time: set simulate.delay and .default_delay above 0"
        )
    if method.participation.on_trees:
        return
    own = node is not None and node.method is not None and bool(node.silos)
    part = node.participation or federation.participation if node is not None and own else federation.participation
    if part.count is not None or part.share < 1.0:
        raise ConfigError(
            f"method '{method.name}' has every silo at work all the time: leave participation.share and .count out"
            + (", or give the region a 'participation' of its own without them" if own else "")
        )
    if federation.train.keep_optimizer or federation.train.samples.adapt is not None:
        raise ConfigError(
            f"method '{method.name}' keeps no state at the silos between rounds: leave train.keep_optimizer "
            "and samples.adapt out"
        )
    if federation.train.schedule.kind != "constant" or federation.train.schedule.warmup:
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
