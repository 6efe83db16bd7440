"""The Medical paper's learning rates, federated and central apart: chosen on validation data, as many tokens seen."""

from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from statistics import fmean
from typing import TYPE_CHECKING

from hansa.config.federation import Federation
from hansa.data.rows import Problems
from hansa.data.splits import rows
from hansa.data.settings import Data
from hansa.data.source import Source
from hansa.experiments.reproduce import Table
from hansa.experiments.reproduce.jobs import Jobs
from hansa.models import tokenizer
from hansa.report import html
from hansa.report.charts import short
from hansa.runs.run import Outcome
from hansa.tasks.base import Vocabulary, windows

if TYPE_CHECKING:
    from hansa.experiments.reproduce.medical import Size

Silos = dict[str, dict[str, str]]
RATES = {"federated": (0.5, 1.0, 2.0), "central": (0.3, 1.0, 3.0, 10.0, 30.0)}  # times the rate that the scale has
PART = 4  # a run to tune by has so much fewer rounds
TEXTS = 500  # are enough to know how long samples are


def equal_tokens(silos: Silos, model: str, length: int) -> float:
    """How many samples central training may see for one of the federation's, so that both see as many tokens: the
    federation asks every silo alike, central training mostly the one whose samples are full."""
    words = tokenizer.load(model)
    found = {code: _samples(Source.model_validate(source), Vocabulary(words, length)) for code, source in silos.items()}
    federated = fmean(tokens for _, tokens in found.values())
    pooled = sum(count * tokens for count, tokens in found.values()) / sum(count for count, _ in found.values())
    return federated / pooled


def _samples(source: Source, vocabulary: Vocabulary) -> tuple[float, float]:
    """About how many samples a silo trains on, and the tokens of one."""
    texts = list(rows(source, "train", Data(), Problems()))
    some = list(islice(texts, TEXTS))
    lengths = [len(sample.ids) for sample in windows(some, source, vocabulary)]
    return len(lengths) * len(texts) / len(some), fmean(lengths)


def tune(jobs: Jobs, size: "Size", build: Callable[[str, "Size"], Federation]) -> tuple["Size", list[Table]]:
    """Short runs with each rate; the size with the best ones, and how all did."""
    brief = replace(size, rounds=max(1, size.rounds // PART))
    usual = {"federated": size.server_lr, "central": size.central_lr}
    tried = {(kind, usual[kind] * times) for kind in RATES for times in RATES[kind]}
    for kind, lr in sorted(tried):
        file = build(kind, _with(brief, kind, lr))
        jobs.start(f"tune {kind} {lr:.0e}", file, None if kind == "federated" else 0)
    means = {(kind, lr): _mean(jobs.result(f"tune {kind} {lr:.0e}")) for kind, lr in sorted(tried)}
    for kind in RATES:
        best = min((lr for k, lr in means if k == kind), key=lambda lr: means[kind, lr])
        size = _with(size, kind, best)
    chosen = {("federated", size.server_lr), ("central", size.central_lr)}
    lines = [
        ["FL, server" if kind == "federated" else "CL", f"{lr:.1e}", short(mean), "←" if (kind, lr) in chosen else ""]
        for (kind, lr), mean in means.items()
    ]
    title = f"Learning rates: mean perplexity over languages on validation data, after {brief.rounds:,} rounds"
    return size, [Table(title, ["", "rate", "perplexity", "chosen"], lines)]


def _with(size: "Size", kind: str, lr: float) -> "Size":
    return replace(size, server_lr=lr) if kind == "federated" else replace(size, central_lr=lr)


def _mean(outcome: Outcome) -> float:
    """The mean over languages at the last look."""
    return html.see(outcome.folder).times[-1][1]
