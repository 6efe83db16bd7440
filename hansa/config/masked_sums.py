"""Which settings `secure_aggregation.noise` and `secure_aggregation.metrics` do not fit; see compatibility.py."""

from hansa.config.federation import Federation
from hansa.config.tree import is_tree, protected
from hansa.core.errors import ConfigError
from hansa.core.method import Method, weighs_equally
from hansa.tasks.base import TASKS, NamedSums


def check_noise(federation: Federation, method: Method) -> None:
    """Raise `ConfigError` for noise in shares that would not cover all that silos send: a plain sum of updates."""
    if not weighs_equally(method.weighting):
        raise ConfigError(
            f"'secure_aggregation.noise' bounds what one silo adds to the sum, and the weights of '{method.name}' "
            "follow from sample counts: set aggregate: {weights: uniform}"
        )
    if is_tree(federation):
        raise ConfigError(
            "'secure_aggregation.noise' works in a flat federation: list all silos at the top level of 'silos', "
            "without regions"
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


def check_metrics(federation: Federation) -> None:
    """Raise `ConfigError` unless the scores are sums over the silos of a flat federation that the task names."""
    if is_tree(federation):
        raise ConfigError(
            "'secure_aggregation.metrics' works in a flat federation: list all silos at the top level of 'silos', "
            "without regions"
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
