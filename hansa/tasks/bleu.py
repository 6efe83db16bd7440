"""BLEU and chrF from statistics that are summed over batches and silos, by sacrebleu (Post, 2018).

BLEU   lengths of hypothesis and reference, matching and possible n-grams for n = 1 … 4
chrF   character n-grams of hypothesis and reference and matching ones, for n = 1 … 6
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from hansa.core.errors import UserError


@cache
def _metrics() -> dict[str, Any]:
    try:
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF
    except ImportError:
        raise UserError("BLEU and chrF need sacrebleu: pip install 'hansa[translation]'") from None
    return {"bleu": BLEU(force=True), "chrf": CHRF()}


ALL = ("bleu", "chrf")


def sums(written: Sequence[str], references: Sequence[str], which: Sequence[str] = ALL) -> dict[str, float]:
    """The sufficient statistics of generated texts and their references, for the metrics in ``which``."""
    found: dict[str, float] = {}
    if not written:
        return found
    for name in which:
        metric = _metrics()[name]
        by_sentence = metric._extract_corpus_statistics(list(written), [list(references)])
        for i, column in enumerate(zip(*by_sentence, strict=True)):
            found[f"{name}:{i}"] = float(sum(column))
    return found


def names(which: Sequence[str] = ALL) -> tuple[str, ...]:
    """The keys of `sums`."""
    return tuple(sums(["a"], ["a"], which))


def metrics(sums: Mapping[str, float]) -> dict[str, float]:
    """Corpus BLEU and chrF as sacrebleu computes them, where there are statistics of them."""
    found = {}
    for name in (name for name in ALL if f"{name}:0" in sums):
        metric = _metrics()[name]
        count = sum(1 for key in sums if key.startswith(f"{name}:"))
        found[name] = float(metric._compute_score_from_stats([int(sums[f"{name}:{i}"]) for i in range(count)]).score)
    return found


def signatures(which: Sequence[str] = ALL) -> tuple[str, ...]:
    """The sacrebleu signatures: version and parameters of each metric in ``which``."""
    chosen = {name: _metrics()[name] for name in which}
    for metric in chosen.values():
        metric.num_refs = 1
    return tuple(f"{name.upper() if name == 'bleu' else 'chrF'} {m.get_signature()}" for name, m in chosen.items())
