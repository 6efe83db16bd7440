"""What does not go with the aggregation of adapters' products (`model.lora.aggregate: exact | stack`)."""

from hansa.config.federation import Federation
from hansa.config.nodes import walk
from hansa.config.tree import is_tree
from hansa.core.errors import ConfigError
from hansa.core.method import Method, steps_to_the_mean

# What to do where a method needs whole updates, and 'upload' chooses tensors.
LESS_CHOICE = "remove calm, active, random or fragments from 'upload'"


def refuse_factors(federation: Federation, method: Method) -> None:
    """Raise `ConfigError` if the products of adapters cannot be combined as the settings say."""
    if method.factors is None:
        _refuse_ranks(federation, "")
        return
    what = f"model.lora.aggregate is '{federation.model.lora.aggregate}'"
    if federation.secure_aggregation is not None:
        raise ConfigError(
            f"{what}, which needs each silo's adapter by itself, and 'secure_aggregation' reveals only sums: use "
            "aggregate 'average', or 'freeze-a' (FFA-LoRA), which is exact from the sum alone"
        )
    if method.hierarchy is not None or is_tree(federation):
        raise ConfigError(
            f"{what}, which needs a flat federation: list all silos at the top level of 'silos', or use "
            "aggregate 'average'"
        )
    if not method.aggregator.linear or not method.participation.synchronous:
        raise ConfigError(
            f"{what}, the weighted average of products in synchronous rounds, and method '{method.name}' combines "
            "updates in another way: use aggregate 'average', or a method with a weighted average"
        )
    if not steps_to_the_mean(method.server):
        raise ConfigError(
            f"{what}, which sets the model to the average of the products, and the server optimizer would move the "
            "adapter elsewhere: leave 'server' out, or use aggregate 'average'"
        )
    if method.upload.selects or method.upload.both_ways:
        raise ConfigError(f"{what}, which needs whole adapters: {LESS_CHOICE}")
    if federation.personal is not None:
        raise ConfigError(f"{what}, and personal models mix adapters with different residuals: leave 'personal' out")
    _refuse_ranks(federation, "stack" if method.factors.restarts else "exact")


def _refuse_ranks(federation: Federation, rule: str) -> None:
    """Raise `ConfigError` for a silo with a rank of its own where ranks must be equal, or above the federation's."""
    for name, node in walk(federation.silos):
        if node.rank is None:
            continue
        if rule != "stack" or federation.model.adapt != "lora":
            raise ConfigError(
                f"silos.{name}.rank is {node.rank}: adapters of different ranks need model.adapt 'lora' with "
                "model.lora.aggregate 'stack'"
            )
        if node.rank > federation.model.lora.rank:
            raise ConfigError(
                f"silos.{name}.rank is {node.rank}, and model.lora.rank, the largest of all, is "
                f"{federation.model.lora.rank}: raise the latter or lower the former"
            )
        if federation.upload.steps or node.privacy is not None:
            raise ConfigError(
                f"silos.{name}.rank is {node.rank}, and compression ('upload') and privacy look at whole adapters: "
                f"leave the rank of '{name}' out, or these"
            )
