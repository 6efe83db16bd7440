"""What is refused before a federation file waits for its turn between organisations.

`hansa serve`, `hansa submit` and the dashboard ask the same function, so that each of them says the same sentence.
"""

from hansa.config.checks import check_labels, check_settings
from hansa.config.federation import Federation
from hansa.config.nodes import ROOT, walk
from hansa.config.plugins import load_plugins
from hansa.core.errors import ConfigError
from hansa.core.method import METHODS
from hansa.deploy.approval import rehearsal_settings
from hansa.deploy.kit import Kit


def check_submission(federation: Federation, kit: Kit | None) -> None:
    """Raise `UserError` if a federation file cannot be run between organisations. Executes the file's plug-ins.

    ``kit``: the coordinator's; without one it is not checked whether the file's silos are members.
    """
    if kit is not None:
        check_deployable(federation, kit)
    else:
        _check_separable(federation)
    check_settings(federation)
    check_labels(federation)


def check_deployable(federation: Federation, kit: Kit) -> None:
    """Raise `ConfigError` if a federation file does not belong to the kit, or cannot be run between organisations.

    Executes the file's plug-ins, since its method may come from them.
    """
    _check_members(federation, kit)
    _check_separable(federation)


def _check_members(federation: Federation, kit: Kit) -> None:
    if federation.name != kit.info.federation or not set(federation.silos) <= set(kit.children):
        raise ConfigError(
            f"the kit is for federation '{kit.info.federation}' with {sorted(kit.children)}, the file has "
            f"'{federation.name}' with {sorted(federation.silos)}; 'hansa kit add' lets new members in"
        )
    members = kit.members()
    for region, node in walk(federation.silos):
        for name in node.silos:
            if name not in members or members[name].parent != region:
                raise ConfigError(f"'{name}' is not a member below '{region}'; 'hansa kit add' lets new members in")


def _check_separable(federation: Federation) -> None:
    """Refuse what needs the data or files of several organisations in one place."""
    if federation.evaluate.keep_best or federation.evaluate.patience is not None:
        raise ConfigError(
            "evaluate.keep_best and evaluate.patience are not available between organisations: silos score test data "
            "once, after the last round, and these settings could end the run at another one; leave them out"
        )
    if rehearsal := rehearsal_settings(federation):
        raise ConfigError(f"{rehearsal}: leave it out between organisations, where silos refuse it")
    mixed = [name for name, node in walk(federation.silos) if node.mixture]
    if mixed or (federation.root is not None and federation.root.mixture):
        raise ConfigError(
            f"'{(mixed or [ROOT])[0]}' holds the mixture of its silos' data, which does not leave the silos; "
            "leave 'mixture' out"
        )
    aligned = [name for name, node in walk(federation.silos) for source in node.sources if source.aligned is not None]
    if aligned:
        raise ConfigError(
            f"'{aligned[0]}' has translations in two aligned files, and 'hansa join --data' takes one file for each "
            "source: put both sides into one file (JSON Lines, a table, TMX)"
        )
    models = [name for name, node in walk(federation.silos) if node.model is not None]
    if models:
        raise ConfigError(
            f"'{models[0]}' names a model folder, and no member opens a folder that another member names; leave "
            "'model' out there"
        )
    if federation.secure_aggregation is not None and federation.secure_aggregation.threshold <= 0.5:
        raise ConfigError(
            f"secure_aggregation.threshold is {federation.secure_aggregation.threshold:g}: between organisations more "
            "than half of the other silos must be needed to reconstruct a secret, otherwise a coordinator that tells "
            "two disjoint groups of silos different things could unmask a silo's update; set it above 0.5"
        )
    if federation.kind != "survey":
        _check_arrivals(federation)


def _check_arrivals(federation: Federation) -> None:
    """Refuse a root of a tree of models that does not wait: it would choose its children by the virtual clock."""
    load_plugins(federation.plugins)
    rule = METHODS.build(federation.method).participation
    if rule.on_trees and rule.buffer:
        raise ConfigError(
            f"method '{federation.method.name}' has 'buffer: {rule.buffer}', which chooses children by the virtual "
            "clock, so that between organisations a child that has stopped holds up the root until the deadline: leave "
            "'buffer' out, or use 'method: fedbuff' with regions, which takes updates as they arrive"
        )
