"""Comparisons: several methods, compressors or baselines on the same data, seed and budget."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hansa.config.checks import check
from hansa.config.federation import Federation
from hansa.config.plugins import load_plugins
from hansa.core.compression import COMPRESSORS
from hansa.core.errors import ConfigError, RunFailed, did_you_mean
from hansa.core.method import METHODS
from hansa.core.settings import Named
from hansa.methods.fedavg import fedavg
from hansa.runs.baselines import with_same_budget
from hansa.runs.result import Result
from hansa.runs.run import run
from hansa.runs.tree_baselines import TREE_BASELINES

BASELINES = ("central", "dominant", "per-silo", "chained", "base")
UNCOMPRESSED = "whole"  # no compressors


def variant(federation: Federation, name: str) -> Federation:
    """The federation with another method, other compressors, or as a baseline.

    ``name``: a baseline (`BASELINES`, or `TREE_BASELINES` of a tree), a method, compressors, or a method and
    compressors joined by ``+``, such as ``fedprox+top-k+int8``. Settings that the file has for what is named stay. A
    method whose rounds end with another number of updates (FedBuff) gets as many rounds as make up for it.
    Raises `ConfigError` for a name that is not known.
    """
    if name in TREE_BASELINES:
        return TREE_BASELINES[name](federation)
    if name in BASELINES:
        return federation.model_copy(update={"kind": name})
    changes: dict[str, Any] = {}
    steps = []
    for part in name.split("+"):
        if part in METHODS.entries and not changes:
            if part != federation.method.name:
                changes = {"method": Named(name=part), **_own_slots(Named(name=part))}
        elif part in COMPRESSORS.entries:
            steps.append(_step(part, federation.upload.steps))
        elif part != UNCOMPRESSED:
            names = [*METHODS.entries, *BASELINES, *TREE_BASELINES, *COMPRESSORS.entries, UNCOMPRESSED]
            raise ConfigError(f"--methods: '{part}' is not known; {did_you_mean(part, names)}")
    if steps or UNCOMPRESSED in name.split("+"):
        changes["upload"] = federation.upload.model_copy(update={"steps": tuple(steps)})
    return with_same_budget(federation, federation.model_copy(update=changes))


def _step(name: str, given: Sequence[Named]) -> Named:
    """A compressor with the settings that the file has for it, or for another compressor of the same kind.

    So `calm`, `active` and `random` are compared at the same share.
    """
    settings = COMPRESSORS.entries[name].model_fields
    for step in sorted(given, key=lambda step: step.name != name):
        same_kind = COMPRESSORS.build(step).kind == COMPRESSORS.build(Named(name=name)).kind
        if same_kind and set(step.settings) <= set(settings):
            return Named(name=name, **step.settings)
    return Named(name=name)


def _own_slots(named: Named) -> dict[str, None]:
    """The sections of the file to leave out, because the method fills those slots itself."""
    method, plain = METHODS.build(named), fedavg()
    own: dict[str, None] = {}
    if method.server != plain.server:
        own["server"] = None
    if (method.aggregator, method.weighting) != (plain.aggregator, plain.weighting):
        own["aggregate"] = None
    return own


def compare(
    federation: Federation,
    names: Sequence[str],
    out: Path,
    workers: int | None,
    watch: Callable[[str], Iterable[object]],
) -> tuple[dict[str, Result], dict[str, str]]:
    """Run every variant (see `variant`) in a folder of its own below ``out``; see `run_variants`."""
    load_plugins(federation.plugins)
    return run_variants({name: variant(federation, name) for name in names}, out, workers, watch)


def run_variants(
    variants: Mapping[str, Federation], out: Path, workers: int | None, watch: Callable[[str], Iterable[object]]
) -> tuple[dict[str, Result], dict[str, str]]:
    """Run several federations in folders below ``out``; return the results, and why others failed, by name.

    ``watch`` gives the callbacks of a run by its name. Raises `ConfigError` before the first run if a federation is
    refused, and `RunFailed` if every one of them failed.
    """
    for one in variants.values():
        check(one)
    results, failures = dict[str, Result](), dict[str, str]()
    for name, one in variants.items():
        try:
            results[name] = run(one, out / name, workers=workers, callbacks=watch(name))
        except RunFailed as error:
            failures[name] = str(error)
    if not results:
        raise RunFailed("; ".join(f"{name}: {reason}" for name, reason in failures.items()))
    return results, failures


def identical(results: Mapping[str, Result]) -> list[list[str]]:
    """The names of runs whose scores are the same to the last bit, in groups of two or more."""
    groups: dict[str, list[str]] = {}
    for name, result in results.items():
        groups.setdefault(json.dumps(result.metrics, sort_keys=True), []).append(name)
    return [names for names in groups.values() if len(names) > 1]
