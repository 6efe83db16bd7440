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


def sums(written: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """The sufficient statistics of generated texts and their references."""
    found: dict[str, float] = {}
    if not written:
        return found
    for name, metric in _metrics().items():
        by_sentence = metric._extract_corpus_statistics(list(written), [list(references)])
        for i, column in enumerate(zip(*by_sentence, strict=True)):
            found[f"{name}:{i}"] = float(sum(column))
    return found


def names() -> tuple[str, ...]:
    """The keys of `sums`."""
    return tuple(sums(["a"], ["a"]))


def metrics(sums: Mapping[str, float]) -> dict[str, float]:
    """Corpus BLEU and chrF as sacrebleu computes them; empty if nothing was translated."""
    if "bleu:0" not in sums:
        return {}
    found = {}
    for name, metric in _metrics().items():
        count = sum(1 for key in sums if key.startswith(f"{name}:"))
        found[name] = float(metric._compute_score_from_stats([int(sums[f"{name}:{i}"]) for i in range(count)]).score)
    return found


def signatures() -> tuple[str, ...]:
    """The sacrebleu signatures: version and parameters of each metric."""
    for metric in _metrics().values():
        metric.num_refs = 1
    return tuple(f"{name.upper() if name == 'bleu' else 'chrF'} {m.get_signature()}" for name, m in _metrics().items())
