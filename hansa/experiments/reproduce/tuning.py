"""The learning rates of the Medical paper's runs: selected on validation data, for as many training tokens."""

from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from statistics import fmean

from hansa.config.federation import Federation
from hansa.data.rows import Problems
from hansa.data.settings import Data
from hansa.data.source import Source
from hansa.data.splits import rows
from hansa.experiments.reproduce import Table
from hansa.experiments.reproduce.jobs import Jobs
from hansa.experiments.reproduce.medical_runs import Size
from hansa.models import tokenizer
from hansa.report.charts import short
from hansa.tasks.base import Vocabulary, windows

Silos = dict[str, dict[str, str]]
RATES = {"federated": (0.5, 1.0, 2.0), "central": (0.3, 1.0, 3.0, 10.0, 30.0)}  # factors on the rate of the scale
PART = 4  # a tuning run has a quarter of the rounds
TEXTS = 500  # read to estimate the length of samples


def equal_tokens(silos: Silos, model: str, length: int) -> float:
    """How many samples central training uses for one sample of the federation, so that both use as many tokens.

    The federation asks every silo for as many samples; central training draws mostly from the largest silo, whose
    samples are full.
    """
    words = tokenizer.load(model)
    found = {code: _samples(Source.model_validate(source), Vocabulary(words, length)) for code, source in silos.items()}
    federated = fmean(tokens for _, tokens in found.values())
    pooled = sum(count * tokens for count, tokens in found.values()) / sum(count for count, _ in found.values())
    return federated / pooled


def _samples(source: Source, vocabulary: Vocabulary) -> tuple[float, float]:
    """Estimates of the number of training samples of a silo, and of the tokens of one sample."""
    texts = list(rows(source, "train", Data(), Problems()))
    some = list(islice(texts, TEXTS))
    lengths = [len(sample.ids) for sample in windows(some, source, vocabulary)]
    return len(lengths) * len(texts) / len(some), fmean(lengths)


Grids = dict[str, dict[float, float]]  # kind of run → learning rate → figure on validation data


def tune(jobs: Jobs, size: Size, build: Callable[[str, Size], Federation]) -> tuple[Size, list[Table], Grids]:
    """Run every rate for a part of the rounds; return the size with the best rates, a table, and all figures."""
    brief = replace(size, rounds=max(1, size.rounds // PART))
    usual = {"federated": size.server_lr, "central": size.central_lr}
    tried = {(kind, usual[kind] * times) for kind in RATES for times in RATES[kind]}
    for kind, lr in sorted(tried):
        file = build(kind, _with(brief, kind, lr))
        jobs.start(f"tune {kind} {lr:.0e}", file, None if kind == "federated" else 0)
    means = {(kind, lr): jobs.cell(f"tune {kind} {lr:.0e}").valid["perplexity"] for kind, lr in sorted(tried)}
    for kind in RATES:
        best = min((lr for k, lr in means if k == kind), key=lambda lr: means[kind, lr])
        size = _with(size, kind, best)
    chosen = {("federated", size.server_lr), ("central", size.central_lr)}
    lines = [
        ["FL, server" if kind == "federated" else "CL", f"{lr:.1e}", short(mean), "←" if (kind, lr) in chosen else ""]
        for (kind, lr), mean in means.items()
    ]
    title = f"Learning rates: mean perplexity over languages on validation data, after {brief.rounds:,} rounds"
    grids = {kind: {lr: mean for (k, lr), mean in means.items() if k == kind} for kind in RATES}
    return size, [Table(title, ["", "rate", "perplexity", "chosen"], lines)], grids


def _with(size: Size, kind: str, lr: float) -> Size:
    return replace(size, server_lr=lr) if kind == "federated" else replace(size, central_lr=lr)
