"""The results of a run, read from its directory as typed records.

`RunResults.read` is the only place that turns the ledger of a run into values; the report, comparisons, the
demonstration and the experiments work with these. Metrics are grouped by language (or domain): group → metric → value.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from hansa.config.federation import Federation
from hansa.config.file import parse
from hansa.config.plugins import load_plugins
from hansa.core.errors import UserError
from hansa.core.messages import DataCard, NodeId
from hansa.runs.ledger import OWN, Ledger
from hansa.tasks.base import TASKS, Task, better

Metrics = Mapping[str, float]  # metric → value
MetricsByGroup = Mapping[str, Metrics]
Point = tuple[float, float]
EVENTS = 200  # the first events of a run that are read
AUDITS = "audit"  # the folder of a run directory that holds the findings of privacy audits
NO_COUNTS: dict[str, Any] = {"minimum": 0, "silos": {}}  # no silo sent word counts


def lower_is_better(task: Task, metric: str) -> bool:
    """Whether lower values of a metric are better; the task declares it."""
    return better(task, metric) == "low"


# ── records ───────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Score:
    """One value of one metric: of a model on a share of a split, for one group."""

    round: int
    split: str
    share: float
    group: str
    metric: str
    value: float


@dataclass(frozen=True)
class NodeTraffic:
    """Bytes between a node and its server over the whole run; ``rounds``: the number of messages with an update."""

    node: NodeId
    rounds: int
    down: int
    up: int


@dataclass(frozen=True)
class SiloRound:
    """What is known of one node in one round; None: it was not released, or is not known for this method."""

    round: int
    node: NodeId
    loss: float | None  # training loss
    weight: float | None  # share of the aggregate
    norm: float | None  # of its update


@dataclass(frozen=True)
class ExchangeTraffic:
    """Bytes of the knowledge that silos shared with one another before training: a part of the traffic."""

    rounds: int
    up: int
    down: int


@dataclass(frozen=True)
class PhaseSeconds:
    """Seconds of a whole run by phase; ``steps``: forward, backward and optimizer, per worker."""

    rounds: int
    total: float
    exchange: float
    steps: float
    work: float
    aggregation: float
    evaluation: float
    checkpoints: float


@dataclass(frozen=True)
class Event:
    """Something that happened at a node in a round: a failure, a refusal, unusable rows."""

    round: int
    node: NodeId
    kind: str
    text: str


@dataclass(frozen=True)
class AttentionWeight:
    """The attention weight of a member at a node of a tree, for one key layer.

    ``stage``: ``down``, before training (the node itself, its parent, residuals), or ``up``, after its children's
    replies.
    """

    round: int
    node: NodeId
    stage: str
    layer: str
    member: str
    weight: float


@dataclass(frozen=True)
class PersonalModels:
    """The models of one silo after personalisation, scored on its own test data."""

    models: Mapping[str, MetricsByGroup]  # kind of model → group → metric → value
    alpha: float  # the interpolation weight of the silo's own model that validation data selected
    curves: Mapping[str, Sequence[float]]  # metric → validation score for every α that was tried
    kept: str  # the kind of model that the silo keeps


@dataclass(frozen=True)
class Personalisation:
    """The personal models of a run, and for every silo the similar silos that its own were mixed with."""

    silos: Mapping[NodeId, PersonalModels]
    nearby: Mapping[NodeId, Mapping[NodeId, float]]


@dataclass(frozen=True)
class RunResults:
    """Everything that a run directory says about a run."""

    name: str
    folder: Path
    federation: Federation
    task: Task
    facts: Mapping[str, Any]  # the ledger's facts about the whole run, by name
    final: dict[str, dict[str, float]]  # group → metric → value of the final model on the whole test set
    by_silo: dict[NodeId, dict[str, dict[str, float]]]  # silo → group → metric → value of the final model
    own: dict[str, dict[str, float]]  # node → metric → value of the node's own model on its own test data
    curves: dict[str, list[Point]]  # group → (samples trained on by all silos, headline metric)
    times: list[Point]  # (virtual seconds, headline metric averaged over groups)
    phases: PhaseSeconds
    losses: list[Point]  # (samples trained on by all silos, mean training loss)
    silo_curves: dict[str, list[Point]]  # "silo" or "silo: group" → (samples, headline metric)
    traffic: tuple[NodeTraffic, ...]
    silo_rounds: tuple[SiloRound, ...]
    exchange: ExchangeTraffic
    events: tuple[Event, ...]
    attention: tuple[AttentionWeight, ...]
    audits: tuple[dict[str, Any], ...]  # the findings of privacy audits

    @staticmethod
    def read(folder: Path, name: str = "") -> "RunResults":
        """Read a run directory; ``name``: what to call the run, by default the name in its federation file.

        Raises `UserError` if the folder is not a run directory.
        """
        file = folder / "federation.yaml"
        if not file.is_file() or not (folder / "ledger.sqlite").is_file():
            raise UserError(
                f"{folder} is not a run directory: federation.yaml or ledger.sqlite is missing; "
                "give a folder that 'hansa run' wrote"
            )
        federation = parse(yaml.safe_load(file.read_text(encoding="utf-8")), where=str(file))
        load_plugins(federation.plugins)
        task = TASKS.build(federation.task)
        with _ledger(folder) as ledger:
            curves, times = _curves(ledger, task.headline)
            return RunResults(
                name=name or federation.name,
                folder=folder,
                federation=federation,
                task=task,
                facts=ledger.facts(),
                final=ledger.final(),
                by_silo=ledger.final_by_silo(),
                own=ledger.final(f"{OWN} test"),
                curves=curves,
                times=times,
                phases=_phases(ledger),
                losses=[(float(seen), loss) for seen, loss in ledger.select(_LOSSES) if loss is not None],
                silo_curves=_silo_curves(ledger, task.headline),
                silo_rounds=tuple(SiloRound(*row) for row in ledger.select(_SILO_ROUNDS)),
                traffic=tuple(NodeTraffic(*row) for row in ledger.select(_TRAFFIC)),
                exchange=ExchangeTraffic(*ledger.select(_EXCHANGE)[0]),
                events=tuple(Event(*row) for row in ledger.select(_EVENTS, EVENTS)),
                attention=tuple(AttentionWeight(*row) for row in ledger.select(_ATTENTION)),
                audits=read_audits(folder),
            )

    def scores(self, metric: str = "", split: str = "test", own: bool = False) -> list[Score]:
        """Every score on a split; see `read_scores`."""
        return read_scores(self.folder, metric, split, own)

    @property
    def cards(self) -> dict[NodeId, DataCard]:
        """The sample counts of every node that holds data."""
        cards = self.facts.get("cards") or self.facts.get(f"cards:{self.federation.kind}") or {}
        return {name: DataCard(**card | {"problems": tuple(card["problems"])}) for name, card in cards.items()}

    @property
    def samples(self) -> dict[str, float]:
        """Training samples by group, over all silos."""
        counts: dict[str, float] = {}
        for card in self.cards.values():
            for group, count in card.groups["train"].items():
                counts[group] = counts.get(group, 0.0) + count
        return counts

    @property
    def parameters(self) -> int:
        """The number of parameters of the model."""
        return int(self.facts.get("parameters", 0))

    @property
    def versions(self) -> dict[str, str]:
        """The versions of the libraries that the run began with, by name."""
        return dict(self.facts.get("versions", {}))

    @property
    def signatures(self) -> tuple[str, ...]:
        """How the metrics library computed the scores of generated texts."""
        return tuple(self.facts.get("signatures", ()))

    @property
    def deviations(self) -> MetricsByGroup:
        """Group → metric → standard deviation over the four parts of the test set."""
        found: MetricsByGroup = self.facts.get("deviations", {})
        return found

    @property
    def vocabulary_counts(self) -> dict[str, Any]:
        """How many word counts and labels each silo sent, and how many counts it withheld."""
        return dict(self.facts.get("survey", NO_COUNTS))

    @property
    def update_bytes(self) -> int:
        """The size of one update without compression; 0 where updates were not compressed."""
        return int(self.facts.get("whole_update", 0))

    @property
    def movement(self) -> Mapping[NodeId, Mapping[str, Sequence[float]]]:
        """Silo → side of the model → how far each tensor moved in the last round; of runs that compress updates."""
        found: Mapping[NodeId, Mapping[str, Sequence[float]]] = self.facts.get("movement", {})
        return found

    @property
    def personal(self) -> Personalisation | None:
        """The personal models of the silos; None if the run made none."""
        noted = self.facts.get("personal")
        if noted is None:
            return None
        silos = {
            name: PersonalModels(one["models"], one["alpha"], one["curves"], one["kept"])
            for name, one in noted["silos"].items()
        }
        return Personalisation(silos, noted["nearby"])

    @property
    def samples_seen(self) -> int:
        """Training samples that all silos together were trained on, counted as often as they were drawn."""
        return int(self.losses[-1][0]) if self.losses else 0

    @property
    def bytes_up(self) -> int:
        """Bytes that all nodes sent, over all rounds."""
        return sum(node.up for node in self.traffic)

    @property
    def bytes_down(self) -> int:
        """Bytes that were sent to all nodes, over all rounds."""
        return sum(node.down for node in self.traffic)

    def time_to_target(self) -> float | None:
        """Virtual seconds until the headline metric reached ``evaluate.target``; None if it never did."""
        target, lower = self.federation.evaluate.target, lower_is_better(self.task, self.task.headline)
        if target is None:
            return None
        return next((at for at, mean in self.times if (mean <= target if lower else mean >= target)), None)


def read_scores(folder: Path, metric: str = "", split: str = "test", own: bool = False) -> list[Score]:
    """Every score that a run noted on a split, by round: of all metrics, or of one.

    ``own``: of every node's own model on its own data, instead of the shared model.
    """
    with _ledger(folder) as ledger:
        rows = ledger.select(_SCORES, f"{OWN} {split}" if own else split, metric)
    return [Score(*row) for row in rows]


# ── audits ────────────────────────────────────────────────────────────────────────────────────────────────────────


def save_audit(folder: Path, findings: Mapping[str, Any]) -> Path:
    """Write the findings of a privacy audit into a run directory; return the file."""
    (folder / AUDITS).mkdir(exist_ok=True)
    file = folder / AUDITS / f"{findings['kind']}.json"
    file.write_text(json.dumps(findings, ensure_ascii=False, indent=1), encoding="utf-8")
    return file


def read_audits(folder: Path) -> tuple[dict[str, Any], ...]:
    """The findings of every privacy audit of a run."""
    return tuple(json.loads(file.read_text(encoding="utf-8")) for file in sorted((folder / AUDITS).glob("*.json")))


# ── reading the ledger ────────────────────────────────────────────────────────────────────────────────────────────

_SCORES = (
    "select round, split, share, grp, metric, value from metrics where split=?1 and ?2 in ('', metric) "
    "order by round, rowid"
)
_PHASES = (
    "select count(*), sum(seconds), sum(trade_seconds), sum(step_seconds), sum(work_seconds), sum(move_seconds), "
    "sum(evaluate_seconds), sum(checkpoint_seconds) from rounds"
)
_TRAFFIC = "select node, count(*), sum(sent), sum(received) from traffic group by node order by node"
_EXCHANGE = "select count(distinct round), coalesce(sum(offered), 0), coalesce(sum(told), 0) from traffic"
_LOSSES = "select sum(seen) over (order by round), loss from rounds order by round"
_SILO_ROUNDS = (
    "select round, node, loss, weight, norm from traffic where loss is not null or weight is not null "
    "or norm is not null order by round, rowid"
)
_SILO_CURVES = (
    "select round, silo, grp, value from silo_metrics where metric=?1 and (split, share) ="
    " (select split, share from silo_metrics order by rowid limit 1) order by round"
)
_EVENTS = "select round, node, kind, text from events order by at limit ?"
_ATTENTION = "select round, node, stage, layer, member, weight from attention order by rowid"
# All evaluations during training use the same data: the split and the share of the first one.
_CURVES = (
    "select round, grp, value from metrics where metric=?1 and (split, share) ="
    " (select split, share from metrics order by rowid limit 1) order by round"
)


@contextmanager
def _ledger(folder: Path) -> Iterator[Ledger]:
    ledger = Ledger(folder)
    try:
        yield ledger
    finally:
        ledger.close()


def _curves(ledger: Ledger, headline: str) -> tuple[dict[str, list[Point]], list[Point]]:
    """The headline metric over training: by group against samples, and averaged against virtual seconds."""
    seen = dict(ledger.select("select round, sum(seen) over (order by round) from rounds"))
    clock = dict(ledger.select("select round, clock from rounds"))
    curves: dict[str, list[Point]] = {}
    means: dict[int, list[float]] = {}
    for round, group, value in ledger.select(_CURVES, headline):
        curves.setdefault(group, []).append((float(seen.get(round, 0)), value))
        means.setdefault(round, []).append(value)
    return curves, [(clock.get(round) or 0.0, fmean(values)) for round, values in sorted(means.items())]


def _silo_curves(ledger: Ledger, headline: str) -> dict[str, list[Point]]:
    """The headline metric over training by silo; of a silo with several groups, by group."""
    seen = dict(ledger.select("select round, sum(seen) over (order by round) from rounds"))
    rows = ledger.select(_SILO_CURVES, headline)
    groups: dict[str, set[str]] = {}
    for _, silo, group, _ in rows:
        groups.setdefault(silo, set()).add(group)
    found: dict[str, list[Point]] = {}
    for round, silo, group, value in rows:
        name = silo if len(groups[silo]) == 1 else f"{silo}: {group}"
        found.setdefault(name, []).append((float(seen.get(round, 0)), value))
    return found


def _phases(ledger: Ledger) -> PhaseSeconds:
    [(rounds, *seconds)] = ledger.select(_PHASES)
    return PhaseSeconds(rounds, *(value or 0.0 for value in seconds))
