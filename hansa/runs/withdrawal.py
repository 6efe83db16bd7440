"""Withdrawal: a run is repeated without a silo, so that nothing of it remains in the model.

The run is repeated without the silo, from the newest checkpoint before the silo's first round. The tokenizer and the
labels may come from counts of all silos. Where the silo's counts are among them, where no such checkpoint was kept, or
where silos or the server keep state between rounds that depends on who took part, the run is repeated from the start;
it then equals a run of the federation file without the silo, bit for bit.
"""

import shutil
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from hansa.config.asynchrony import rules_above
from hansa.config.federation import Federation
from hansa.config.file import dump, parse, read
from hansa.config.method import build_method
from hansa.config.nodes import leaves
from hansa.core.errors import UserError, did_you_mean
from hansa.runs.directory import RunDirectory
from hansa.runs.ledger import Ledger
from hansa.runs.remains import Remains, remains
from hansa.runs.result import Result
from hansa.runs.run import run

SERVED = "server"  # the folder that 'hansa serve' adds to a run directory


@dataclass(frozen=True)
class Retraining:
    """A run that is to be repeated without a silo, from the checkpoint of round ``begin``; 0: from the start."""

    folder: Path
    federation: Federation
    silo: str
    begin: int
    why: str  # it begins there
    remains: Remains


def plan_retraining(folder: Path, silo: str, from_start: bool = False) -> Retraining:
    """How the run in ``folder`` is repeated without a silo; raises `UserError` if it cannot be."""
    if not (folder / "federation.yaml").is_file():
        raise UserError(f"{folder} is not a run directory: it has no federation.yaml; give the folder of a run")
    if (folder / SERVED).is_dir():
        raise UserError(
            f"{folder} was run between organisations, whose data is not here: revoke the silo with 'hansa kit revoke "
            f"AUTHORITY {silo}', take it out of the federation file, and run 'hansa serve' with another --out"
        )
    federation = read(folder / "federation.yaml")
    smaller = without(federation, silo)
    ledger = Ledger(folder)
    try:
        found = remains(ledger, silo)
    finally:
        ledger.close()
    begin, why = _begin(folder, smaller, found, from_start)
    return Retraining(folder, smaller, silo, begin, why, found)


def _begin(folder: Path, federation: Federation, found: Remains, from_start: bool) -> tuple[int, str]:
    kept = [number for number in RunDirectory(folder).checkpoints() if not found.rounds or number < found.rounds[0]]
    if from_start:
        return 0, "--from-start"
    if found.in_start:
        return 0, "the tokenizer or the labels were built from its counts, too, and are built again"
    if not kept:
        first = found.rounds[0] if found.rounds else 1
        return 0, f"no checkpoint from before its first round, {first}, was kept"
    if not _stateless(federation):
        return 0, "with these settings silos or the server keep state that depends on who took part"
    return kept[-1], "nothing of it is in that checkpoint"


def _stateless(federation: Federation) -> bool:
    """Whether a checkpoint holds all state of a run, and none of a silo that had not taken part yet."""
    method = build_method(federation)
    keeps = (
        method.objective.state is not None,
        method.shared_state is not None,
        method.hierarchy is not None,
        method.exchange is not None,
        not all(rule.synchronous for name in leaves(federation.silos) for rule in rules_above(federation, name)),
        bool(federation.upload.steps),
        federation.train.keep_optimizer or method.keeps_optimizer,
        federation.train.samples.adapt is not None,
        federation.kind != "federated",
        federation.personal is not None,
    )
    return not any(keeps)


def without(federation: Federation, silo: str) -> Federation:
    """The federation file without a silo; raises `UserError` if it has no such silo, or no other."""
    names = leaves(federation.silos)
    if silo not in names:
        raise UserError(f"--without {silo}: the run has no such silo; {did_you_mean(silo, names)}")
    if len(names) == 1:
        raise UserError(f"--without {silo}: it is the only silo of the run, and nothing would be left to train on")
    raw = yaml.safe_load(dump(federation))
    raw["silos"] = _pruned(raw["silos"], silo)
    for section in ("delay", "poison"):
        raw.get("simulate", {}).get(section, {}).pop(silo, None)
    if "order" in raw:
        raw["order"] = [name for name in raw["order"] if name != silo]
    count = raw.get("participation", {}).get("count")
    if count is not None:
        raw["participation"]["count"] = min(count, len(raw["silos"]))
    return parse(raw, f"the federation file without '{silo}'")


def _pruned(silos: dict[str, Any], silo: str) -> dict[str, Any]:
    """The nodes without a silo, and without regions that it leaves empty."""
    left = {}
    for name, node in silos.items():
        if name == silo:
            continue
        below = node.get("silos") if isinstance(node, dict) else None
        if below:
            node = node | {"silos": _pruned(below, silo)}
            if not node["silos"]:
                continue
        left[name] = node
    return left


def retrain(
    plan: Retraining, out: Path | None = None, workers: int | None = None, callbacks: Iterable[object] = ()
) -> Result:
    """Repeat a run without a silo in ``out``, by default the run's folder with ``-without-SILO``."""
    folder = out or plan.folder.with_name(f"{plan.folder.name}-without-{plan.silo}")
    if plan.begin:
        _copy_checkpoint(plan, folder)
    outcome = run(plan.federation, folder, resume=bool(plan.begin), workers=workers, callbacks=callbacks)
    ledger = Ledger(folder)
    try:
        ledger.fact("retrained", {"without": plan.silo, "begin": plan.begin})
    finally:
        ledger.close()
    return outcome


def _copy_checkpoint(plan: Retraining, folder: Path) -> None:
    """Begin a run directory with the start, the checkpoint and the rounds before it of another run."""
    RunDirectory.create(plan.federation, folder, resume=False)
    shutil.copytree(plan.folder / "start", folder / "start")
    checkpoint = Path("checkpoints") / f"round-{plan.begin}"
    shutil.copytree(plan.folder / checkpoint, folder / checkpoint)
    source = sqlite3.connect(plan.folder / "ledger.sqlite")
    target = sqlite3.connect(folder / "ledger.sqlite")
    with closing(source), closing(target):
        source.backup(target)
        target.execute("delete from events where node = ?", (plan.silo,))
        target.execute("delete from facts where name in ('withdrawn', 'retrained', 'personal')")
        target.commit()
    shutil.copyfile(plan.folder / "metrics.jsonl", folder / "metrics.jsonl")
