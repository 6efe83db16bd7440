"""Several methods on the same data, seed and budget, in one report."""

from collections.abc import Callable, Sequence
from pathlib import Path

from hansa.checks import check
from hansa.config import Federation, Named
from hansa.errors import ConfigError, did_you_mean
from hansa.methods import METHODS
from hansa.methods.fedavg import fedavg
from hansa.registry import load_plugins
from hansa.report import html
from hansa.run import Outcome, run
from hansa.watch import Watcher

BASELINES = ("central", "dominant", "per-silo", "chained", "base")


def variant(federation: Federation, name: str) -> Federation:
    """The federation with another method, or as one of the baselines."""
    if name in BASELINES:
        return federation.model_copy(update={"kind": name})
    if name not in METHODS.entries:
        raise ConfigError(f"--methods: '{name}' is not known; {did_you_mean(name, [*METHODS.entries, *BASELINES])}")
    if name == federation.method.name:
        return federation
    return federation.model_copy(update={"method": Named(name=name)} | _own_slots(Named(name=name)))


def _own_slots(named: Named) -> dict[str, None]:
    """Sections of the file to leave out, because the method fills those slots itself."""
    method, plain = METHODS.build(named), fedavg()
    own: dict[str, None] = {}
    if method.server != plain.server:
        own["server"] = None
    if (method.aggregate, method.weigh) != (plain.aggregate, plain.weigh):
        own["aggregate"] = None
    return own


def compare(
    federation: Federation, names: Sequence[str], out: Path, workers: int | None, watch: Callable[[str], Watcher]
) -> dict[str, Outcome]:
    load_plugins(federation.uses)
    variants = {name: variant(federation, name) for name in names}
    for one in variants.values():
        check(one)  # what is refused is refused before the first run
    outcomes = {}
    for name, one in variants.items():
        outcomes[name] = run(one, out / name, workers=workers, watcher=watch(name))
    html.write([(name, outcome.folder) for name, outcome in outcomes.items()], out / "report.html", federation.name)
    return outcomes
