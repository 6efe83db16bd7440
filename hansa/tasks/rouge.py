"""ROUGE-L (Lin, 2004, Section 3.1): the longest common subsequence of the words of two texts.

    R = LCS(x, y)/|x|,  P = LCS(x, y)/|y|,  F = 2·R·P/(R + P) = 2·LCS(x, y)/(|x| + |y|)

x: the words of the reference; y: those of the generated text. A word is a run of letters and digits of any script, in
lower case. The score of several texts is the mean of their F, so that silos send sums. rapidfuzz computes the LCS.
"""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import version
from typing import Any

from hansa.core.errors import UserError

WORD = re.compile(r"[^\W_]+")
NAMES = ("rouge_l", "answers")  # the sum of F, and the number of texts


@cache
def _lcs() -> Any:
    try:
        from rapidfuzz.distance import LCSseq
    except ImportError:
        raise UserError("ROUGE-L needs rapidfuzz: pip install 'hansa[instruct]'") from None
    return LCSseq


def f1(written: str, reference: str) -> float:
    """F of one text, from 0 to 1; 1 if neither has a word."""
    left, right = (WORD.findall(text.lower()) for text in (written, reference))
    if not left and not right:
        return 1.0
    return float(2 * _lcs().similarity(left, right) / (len(left) + len(right)))


def sums(written: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """The sum of F over texts, and their number."""
    scores = [f1(one, other) for one, other in zip(written, references, strict=True)]
    return dict(zip(NAMES, (sum(scores), float(len(scores))), strict=True)) if scores else {}


def metrics(sums: Mapping[str, float]) -> dict[str, float]:
    """The mean of F in percent; empty if nothing was generated."""
    count = sums.get("answers", 0.0)
    return {"rouge_l": 100 * sums["rouge_l"] / count} if count else {}


def signature() -> str:
    """How exactly the figure is computed."""
    _lcs()
    return f"ROUGE-L F1|words: letters and digits, lower case|no stemming|rapidfuzz {version('rapidfuzz')}"
