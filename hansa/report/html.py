"""One self-contained page about one run or several: no script, no network, light and dark, right-to-left safe."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from hansa.config.federation import Federation
from hansa.config.file import dump, parse, without_folders
from hansa.config.plugins import load_plugins
from hansa.core.errors import UserError
from hansa.privacy.policy.disclosures import releases
from hansa.report import audit
from hansa.report.charts import bars, lines, short
from hansa.report.nodes import tree_of
from hansa.report.own import listening, own_table
from hansa.report.personal import alpha_charts, neighbours, personal_tables
from hansa.report.uploads import Cost, movements, quality_against_bytes, saved
from hansa.runs.ledger import OWN, Ledger
from hansa.tasks.base import TASKS, Task

NO_SURVEY: dict[str, Any] = {"minimum": 0, "silos": {}}
LOWER = {"perplexity", "bits_per_byte"}  # metrics of which less is better
PHASES = ("exchange", "steps", "around them", "moving the model", "evaluating", "checkpoints")


@dataclass(frozen=True)
class Seen:
    """A run as the report sees it."""

    name: str
    federation: Federation
    task: Task
    facts: dict[str, Any]
    final: dict[str, dict[str, float]]
    curves: dict[str, list[tuple[float, float]]]  # group → (samples seen, headline metric)
    times: list[tuple[float, float]]  # (virtual seconds, mean of the headline metric)
    rounds: list[tuple[Any, ...]]
    traffic: list[tuple[Any, ...]]
    exchanged: tuple[int, int, int]  # rounds, bytes offered, bytes told: parts of the traffic
    events: list[tuple[Any, ...]]
    text: str
    own: dict[str, dict[str, float]]  # on a tree: node → metric → value, of its own model on its own test data
    heard: list[tuple[Any, ...]]
    audits: list[dict[str, Any]]

    @property
    def cards(self) -> dict[str, Any]:
        cards: dict[str, Any] = self.facts.get("cards") or self.facts.get(f"cards:{self.federation.kind}") or {}
        return cards


def see(folder: Path, name: str = "") -> Seen:
    """Read everything a report needs out of a run directory."""
    file = folder / "federation.yaml"
    if not file.is_file() or not (folder / "ledger.sqlite").is_file():
        raise UserError(f"{folder}: this is not a run directory (no federation.yaml and ledger.sqlite)")
    federation = parse(yaml.safe_load(file.read_text(encoding="utf-8")), where=str(file))
    load_plugins(federation.plugins)
    task = TASKS.build(federation.task)
    ledger = Ledger(folder)
    try:
        seen_by_round = dict(ledger.select("select round, sum(seen) over (order by round) from rounds"))
        clock = dict(ledger.select("select round, clock from rounds"))
        curves: dict[str, list[tuple[float, float]]] = {}
        means: dict[int, list[float]] = {}
        # The running looks, all on the same data: those of the first evaluation's split and share.
        query = (
            "select round, grp, value from metrics where metric=?1 and (split, share) ="
            " (select split, share from metrics order by rowid limit 1) order by round"
        )
        for round, group, value in ledger.select(query, task.headline):
            curves.setdefault(group, []).append((float(seen_by_round.get(round, 0)), value))
            means.setdefault(round, []).append(value)
        return Seen(
            name=name or federation.name,
            federation=federation,
            task=task,
            facts=ledger.facts(),
            final=ledger.final(),
            curves=curves,
            times=[(clock.get(round) or 0.0, fmean(values)) for round, values in sorted(means.items())],
            rounds=ledger.select(
                "select count(*), sum(seconds), sum(trade_seconds), sum(step_seconds), sum(work_seconds), "
                "sum(move_seconds), sum(evaluate_seconds), sum(checkpoint_seconds) from rounds"
            ),
            exchanged=ledger.select(
                "select count(distinct round), coalesce(sum(offered), 0), coalesce(sum(told), 0) from traffic"
            )[0],
            traffic=ledger.select(
                "select node, count(*), sum(sent), sum(received) from traffic group by node order by node"
            ),
            events=ledger.select("select round, node, kind, text from events order by at limit 200"),
            text=dump(without_folders(federation)),
            own=ledger.final(f"{OWN} test"),
            heard=ledger.select("select round, node, stage, layer, member, weight from attention order by rowid"),
            audits=audit.sections(folder),
        )
    finally:
        ledger.close()


class Tabular(Protocol):
    """A table made elsewhere, such as a reproduction's."""

    @property
    def title(self) -> str: ...

    @property
    def columns(self) -> list[str]: ...

    @property
    def rows(self) -> list[list[str]]: ...

    @property
    def note(self) -> str: ...


def write(
    folders: Sequence[tuple[str, Path]],
    out: Path,
    title: str = "",
    reading: Sequence[str] = (),
    tables: Sequence[Tabular] = (),
) -> Path:
    """The report of the given (name, run directory) pairs; the first run is the one whose data it describes.
    ``reading`` and ``tables`` come first: what several runs show together."""
    runs = [see(folder, name) for name, folder in folders]
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    page = environment.get_template("page.html").render(content(runs, title, list(reading), list(tables)))
    draft = out.with_suffix(".draft")
    draft.write_text(page, encoding="utf-8")
    os.replace(draft, out)
    return out


def content(runs: list[Seen], title: str, reading: list[str], tables: list[Tabular]) -> dict[str, Any]:
    first = runs[0]
    return {
        "title": title or first.federation.name,
        "lead": _lead(first, len(runs)),
        "reading": reading,
        "tables": tables,
        "headlines": [headline(runs, metric) for metric in _metrics(runs)],
        "curves": _curves(runs),
        "curve_names": [run.name for run in runs if run.curves],
        "curve_note": f"{first.task.headline} on held-out data against samples seen by all silos together.",
        "time_chart": _time_chart(runs),
        "targets": _targets(runs),
        "trees": [one for run in runs if (one := tree_of(run))],
        "personal": [_personal(run) for run in runs if "personal" in run.facts],
        "own": _own(runs),
        "listening": [{"name": run.name, **listening(run.heard)} for run in runs if run.heard],
        "silos": _silos(first),
        "sample_note": _sample_note(first.federation.data.max_length),
        "share_chart": _shares(first),
        "releases": releases(first.federation, first.facts.get("survey", NO_SURVEY)),
        "traffic": _traffic(first),
        "traffic_note": _exchanged(first),
        "traffic_chart": _traffic_chart(runs),
        "audits": [one | {"run": run.name} for run in runs for one in run.audits],
        "cost": cost(runs),
        "saved": [f"{run.name}: {line}" for run in runs if (line := _saved(run))],
        "movements": [{"name": run.name, "silos": list(m), "charts": movements(m)} for run, m in _moved(runs)],
        "phases": [row for run in runs if (row := _phases(run))],
        "phase_names": PHASES,
        "events": [
            {"run": run.name, "round": r, "node": node, "kind": kind, "text": text}
            for run in runs
            for r, node, kind, text in run.events
        ],
        "configurations": [{"name": run.name, "text": run.text} for run in runs],
        "versions": "Hansa report. " + ", ".join(f"{k} {v}" for k, v in first.facts.get("versions", {}).items()),
    }


def _lead(run: Seen, runs: int) -> str:
    f = run.federation
    parameters = run.facts.get("parameters", 0)
    text = f"{len(run.cards)} silos, task {f.task.name}, {parameters:,} parameters, seed {f.seed}"
    return text + (
        f"; {runs} runs compared." if runs > 1 else f"; {f.kind}, method {f.method.name}, {f.rounds} rounds."
    )


def _metrics(runs: list[Seen]) -> list[str]:
    found = dict.fromkeys(m for run in runs for values in run.final.values() for m in values if m != "loss")
    return sorted(found, key=lambda m: m != runs[0].task.headline)


def headline(runs: list[Seen], metric: str) -> dict[str, Any]:
    """Rows: languages; columns: runs; the best of each row marked; then the plain and the weighted mean."""
    lower = metric in LOWER
    groups = list(dict.fromkeys(g for run in runs for g in run.final))
    weights = weights_of(runs[0])

    def row(name: str, values: list[float | None], total: bool) -> dict[str, Any]:
        known = [v for v in values if v is not None]
        best = (min if lower else max)(known) if len(set(known)) > 1 else None
        spread = [run.facts.get("deviations", {}).get(name, {}).get(metric) for run in runs]
        cells = [
            {"text": _figure(v, metric), "best": v is not None and v == best, "spread": _spread(s, metric)}
            for v, s in zip(values, spread, strict=True)
        ]
        return {"name": name, "cells": cells, "sum": total}

    rows = [row(g, [run.final.get(g, {}).get(metric) for run in runs], False) for g in groups]
    if len(groups) > 1:
        rows.append(row("mean of languages", [average(run.final, metric) for run in runs], True))
        rows.append(row("weighted by data", [average(run.final, metric, weights) for run in runs], True))
        rows.append(row("worst language", [worst(run.final, metric) for run in runs], True))
    better = "lower is better" if lower else "higher is better"
    return {
        "title": f"{metric.replace('_', ' ').capitalize()} on the test set",
        "columns": [run.name for run in runs],
        "rows": rows,
        "note": f"{better.capitalize()}."
        + (" The best of each row is marked." if len(runs) > 1 else "")
        + "".join(f" {s}." for s in runs[0].facts.get("signatures", ()) if s.lower().startswith(metric)),
    }


def average(final: dict[str, dict[str, float]], metric: str, weights: dict[str, float] | None = None) -> float | None:
    values = {g: m[metric] for g, m in final.items() if metric in m}
    if not values:
        return None
    if weights is None:
        return fmean(values.values())
    total = sum(weights.get(g, 0.0) for g in values)
    return sum(v * weights.get(g, 0.0) for g, v in values.items()) / total if total else None


def worst(final: dict[str, dict[str, float]], metric: str) -> float | None:
    """Of the language that the model serves least: the measure of fairness."""
    values = [m[metric] for m in final.values() if metric in m]
    return (max if metric in LOWER else min)(values) if values else None


def weights_of(run: Seen) -> dict[str, float]:
    """Training samples by language."""
    counts: dict[str, float] = {}
    for card in run.cards.values():
        for group, n in card["groups"]["train"].items():
            counts[group] = counts.get(group, 0.0) + n
    return counts


def _spread(value: float | None, metric: str) -> str:
    return "" if value is None else f"standard deviation {_figure(value, metric)} over four parts of the test set"


def _figure(value: float | None, metric: str) -> str:
    if value is None:
        return "–"
    return short(value) if metric == "perplexity" else f"{value:.4f}"


def _curves(runs: list[Seen]) -> list[str]:
    groups = list(dict.fromkeys(g for run in runs for g in run.curves))
    drawn = [run for run in runs if run.curves]
    log = runs[0].task.lower_is_better
    return [
        lines(group, [(run.name, run.curves.get(group, [])) for run in drawn], "samples seen", log) for group in groups
    ]


def _time_chart(runs: list[Seen]) -> str:
    if not any(run.federation.simulate.delay for run in runs):
        return ""
    metric, log = runs[0].task.headline, runs[0].task.lower_is_better
    return lines(f"mean {metric}", [(run.name, run.times) for run in runs], "virtual seconds", log)


def _targets(runs: list[Seen]) -> list[str]:
    """When each run got to `evaluate.target`, by the virtual clock."""
    found = []
    for run in runs:
        target = run.federation.evaluate.target
        if target is None:
            continue
        lower = run.task.lower_is_better
        at = next((at for at, mean in run.times if (mean <= target if lower else mean >= target)), None)
        when = "did not get there" if at is None else f"after {short(at)} virtual seconds"
        found.append(f"{run.name}: mean {run.task.headline} {short(target)} {when}")
    return found


def _personal(run: Seen) -> dict[str, Any]:
    found = run.facts["personal"]
    return {
        "name": run.name,
        "tables": personal_tables(found),
        "charts": alpha_charts(found),
        "neighbours": neighbours(found),
    }


def _own(runs: list[Seen]) -> list[dict[str, Any]]:
    trees = [(run.name, run.own) for run in runs if run.own]
    metrics = dict.fromkeys(m for _, own in trees for values in own.values() for m in values if m != "loss")
    return [own_table(trees, metric) for metric in metrics]


def _silos(run: Seen) -> list[dict[str, str]]:
    counts = {name: sum(card["groups"]["train"].values()) for name, card in run.cards.items()}
    total, per_round = sum(counts.values()) or 1, sum(c["per_round"] for c in run.cards.values()) or 1
    return [
        {
            "name": name,
            "samples": f"{counts[name]:,}",
            "share": f"{counts[name] / total:.1%}",
            "per_round": f"{card['per_round']:,}",
            "round_share": f"{card['per_round'] / per_round:.1%}",
            "test": f"{sum(card['groups'].get('test', {}).values()):,}",
        }
        for name, card in run.cards.items()
    ]


def _sample_note(length: int) -> str:
    return f"A sample is a window of at most {length} tokens: a long text gives several."


def _shares(run: Seen) -> str:
    counts = {name: sum(card["groups"]["train"].values()) for name, card in run.cards.items()}
    total, per_round = sum(counts.values()) or 1, sum(c["per_round"] for c in run.cards.values()) or 1
    if len(counts) > 60:
        return ""
    rows = [(n, (100 * counts[n] / total, 100 * c["per_round"] / per_round)) for n, c in run.cards.items()]
    return bars("Share of the data (first bar) and of a round's samples (second)", rows, ["data", "round"], " %")


def _traffic(run: Seen) -> list[dict[str, Any]]:
    rows = [
        {"name": n, "rounds": c, "down": size(s), "up": size(r), "each": size(r / max(1, c)), "sum": False}
        for n, c, s, r in run.traffic
    ]
    if len(rows) > 1:
        down, up = sum(s for *_, s, _ in run.traffic), sum(r for *_, r in run.traffic)
        rows.append({"name": "all", "rounds": "", "down": size(down), "up": size(up), "each": "", "sum": True})
    return rows


def _exchanged(run: Seen) -> str:
    rounds, offered, told = run.exchanged
    if not offered:
        return ""
    return (
        f"Of this, what silos told one another before training: {size(offered)} up and {size(told)} down, "
        f"{size((offered + told) / max(1, rounds))} per round; the rest is the model, its updates and headers."
    )


def _traffic_chart(runs: list[Seen]) -> str:
    rows = [
        (run.name, (sum(s for *_, s, _ in run.traffic) / 1e6, sum(r for *_, r in run.traffic) / 1e6)) for run in runs
    ]
    return (
        bars("Traffic in all: down (first bar) and up (second)", rows, ["down", "up"], " MB") if len(runs) > 1 else ""
    )


def cost(runs: list[Seen]) -> dict[str, Any]:
    """Quality against bytes, of the federated runs."""
    metrics = _metrics(runs)
    costs = []
    for run in runs:
        if run.federation.kind == "federated":
            quality = {m: mean for m in metrics if (mean := average(run.final, m)) is not None}
            up, down = sum(r for *_, r in run.traffic), sum(s for *_, s, _ in run.traffic)
            costs.append(Cost(run.name, up, down, quality))
    return quality_against_bytes(costs, metrics, LOWER)


def _saved(run: Seen) -> str:
    return saved(run.facts, sum(r for *_, r in run.traffic), sum(count for _, count, *_ in run.traffic))


def _moved(runs: list[Seen]) -> list[tuple[Seen, dict[str, Any]]]:
    return [(run, run.facts["movement"]) for run in runs if "movement" in run.facts]


def size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.3g} {unit}" if unit != "B" else f"{count:.0f} B"
        count /= 1000
    raise AssertionError("unreachable")


def _phases(run: Seen) -> dict[str, Any] | None:
    rounds, total, trade, steps, work, move, evaluating, checkpoint = run.rounds[0]
    if not rounds:
        return None
    parts = (trade, steps, max(0.0, work - steps), move, evaluating, checkpoint)
    return {"name": run.name, "rounds": rounds, "total": f"{total:.1f} s", "cells": [f"{p:.1f} s" for p in parts]}
