"""Canary exposure: how well a model remembers random sequences that one silo's training rows contain.

Carlini et al. (2019), The Secret Sharer, Definition 5 and Section 4:

    exposure(s) = log₂|R| − log₂ rank(s), in bits

s: the inserted sequence; R: candidates, random sequences of the same form, s among them; rank: the place of s when R is
ordered by loss. A model that has not seen s gives it a random rank, on average log₂ e = 1.44 bits; log₂|R| is the most.

The run is repeated from its own start with canaries among the rows of one silo, 1, 4 and 16 times each; canaries that
are inserted 0 times are the control that shows what chance gives. It is repeated twice: as its file says, and with the
protection of the silos' updates taken away, or, where there is none, with noise.

Deviations: the rank is among `CANDIDATES` sampled sequences, so exposure ends at log₂ of their number; for a classifier
canaries have the two most frequent labels in turn, so that no label follows from being a canary, and a canary is ranked
by the loss of its own label. Sequences are words of one token each, all of one length.
"""

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import log2
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from hansa.attacks.gradient import target_silo
from hansa.attacks.losses import row_losses
from hansa.attacks.rerun import Rows, run_again, same_start, whole_words, with_rows, write
from hansa.attacks.statistics import Values, exposure
from hansa.client.host import SiloHost
from hansa.client.runtime import Runtime
from hansa.config.federation import Federation
from hansa.config.nodes import leaves
from hansa.config.sections import Privacy
from hansa.core.errors import UserError
from hansa.core.seeds import stream
from hansa.data import examples
from hansa.data.source import Source
from hansa.privacy.dp.prices import update_prices
from hansa.runs.inference import load, open_run

TASKS = ("mlm", "causal-lm", "classify")
REPEATS = (0, 1, 4, 16)
CANARIES = 8  # of each number of repetitions
CANDIDATES = 1024
WORDS = 6  # of a canary
CHANCE = 1.44  # bits: the mean exposure of sequences that the model has not seen
NOISE = Privacy(noise_multiplier=1.0, clip=1.0)  # where the run has no protection of its own


@dataclass(frozen=True)
class Canaries:
    """Random sequences: those that are inserted, by how often, and the other candidates."""

    inserted: dict[int, list[str]]
    others: list[str]
    labels: tuple[str, ...]  # of a classifier's canaries, in turn; one empty label otherwise

    def rows(self, source: Source) -> Iterator[dict[str, Any]]:
        """The rows to insert."""
        for times, texts in self.inserted.items():
            for number, text in enumerate(texts):
                yield from [{source.text: text, source.label: self.label(number)}] * times

    def label(self, number: int) -> str:
        """The label of a canary, by its number among those that are inserted equally often."""
        return self.labels[number % len(self.labels)]

    @property
    def all(self) -> list[str]:
        """Every sequence: the inserted ones first."""
        return [text for texts in self.inserted.values() for text in texts] + self.others


def attack_canaries(run: Path, silo: str | None, say: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Measure the exposure of canaries in one silo's rows, with and without protection; return the findings.

    ``silo``: its name; None: the smallest. ``say`` gets a line of progress before each run. Raises `UserError` for a
    task whose rows are not texts alone.
    """
    runtime = open_run(run)
    if runtime.federation.task.name not in TASKS or runtime.method.hierarchy is not None:
        raise UserError(
            f"{run}: canaries are rows with a text of their own; this attack needs a run of a flat federation with "
            f"task {', '.join(TASKS)}"
        )
    name = target_silo(runtime, silo)
    canaries = make_canaries(runtime, name)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        node = with_rows(runtime, name, Path(folder) / "rows", lambda found, source: _mixed(found, source, canaries))
        again = same_start(runtime)
        again = again.model_copy(update={"silos": again.silos | {name: node}})
        for protection, one in variants(again, name).items():
            say(f"running the federation again with canaries at {name}: {protection}")
            done = run_again(one, Path(folder) / f"run-{len(rows)}")
            bits = exposures(done, name, canaries)
            cost = update_prices(one, one.rounds).get(name)
            rows.append({"protection": protection, "epsilon": cost.epsilon if cost else None, "exposure": bits})
    found = {"kind": "canary", "silo": name, "candidates": CANDIDATES, "canaries": CANARIES, "rows": rows}
    return found | {"reading": reading(found)}


def variants(federation: Federation, name: str) -> dict[str, Federation]:
    """The federation without protection of the updates, then with it."""
    private = {n: node.privacy for n, node in leaves(federation.silos).items()}

    def having(privacy: dict[str, Privacy | None]) -> Federation:
        """The federation with the given privacy settings (None: no protection) at each silo, by name."""
        silos = {n: node.model_copy(update={"privacy": privacy[n]}) for n, node in leaves(federation.silos).items()}
        return federation.model_copy(update={"silos": silos})

    none = having(dict.fromkeys(private))
    if private[name] is not None:
        return {"without protection": none, "as the run was": federation}
    words = f"noise {NOISE.noise_multiplier:g}× a clipping norm of {NOISE.clip} at every silo"
    return {"as the run was": none, words: having(dict.fromkeys(private, NOISE))}


def make_canaries(runtime: Runtime, name: str) -> Canaries:
    """Draw the sequences from the words of the vocabulary that are one token each."""
    vocabulary, rng = runtime.vocabulary, stream(runtime.federation.seed, "canaries", name)
    words = whole_words(runtime)
    if len(words) < 2 * WORDS:
        raise UserError(f"the vocabulary has {len(words)} whole words; canaries need at least {2 * WORDS}")
    length = min(WORDS, vocabulary.text_length)
    drawn = dict[str, None]()
    while len(drawn) < CANDIDATES + CANARIES * len(REPEATS):
        drawn[" ".join(words[i] for i in rng.integers(0, len(words), length))] = None
    texts = list(drawn)
    inserted = {times: texts[i * CANARIES : (i + 1) * CANARIES] for i, times in enumerate(REPEATS)}
    return Canaries(inserted, texts[CANARIES * len(REPEATS) :], _frequent(runtime, name))


def _frequent(runtime: Runtime, name: str) -> tuple[str, ...]:
    """The two most frequent labels of a silo; one empty label where the task has none."""
    names = runtime.vocabulary.labels
    if not names:
        return ("",)
    held = SiloHost(runtime).silo(name).resident.examples("train")
    counts = np.bincount(held.labels[held.labels >= 0], minlength=len(names))
    return tuple(names[i] for i in np.argsort(-counts, kind="stable")[:2])


def _mixed(found: Rows, source: Source, canaries: Canaries) -> Rows:
    return [*found, *canaries.rows(source)]


def exposures(run: Path, name: str, canaries: Canaries) -> dict[str, float]:
    """Repetitions → mean exposure in bits of the canaries that were inserted so often."""
    runtime, model = load(run)
    losses = {label: _losses(runtime, model, name, canaries.all, label) for label in canaries.labels}
    others = {label: np.sort(found[-len(canaries.others) :]) for label, found in losses.items()}
    found, at = dict[str, float](), 0
    for times, texts in canaries.inserted.items():
        bits = []
        for number in range(len(texts)):
            label = canaries.label(number)
            rank = 1 + int(np.searchsorted(others[label], losses[label][at + number], "right"))  # ties count for others
            bits.append(exposure(rank, len(canaries.others) + 1))
        found[str(times)] = fmean(bits)
        at += len(texts)
    return found


def _losses(runtime: Runtime, model: Any, name: str, texts: list[str], label: str) -> Values:
    """The loss of every text with a label."""
    source = leaves(runtime.federation.silos)[name].sources[0]
    with tempfile.TemporaryDirectory() as folder:
        file = str(write(Path(folder) / "candidates.jsonl", [{source.text: t, source.label: label} for t in texts]))
        asked = source.model_copy(update={"train": file, "valid": None, "test": file, "limit": None, "part": None})
        held = examples.load(
            [asked],
            "test",
            runtime.federation.data.model_copy(update={"deidentify": None}),
            [name],
            lambda some, s: runtime.task.encode(some, s, runtime.vocabulary),
            runtime.fingerprint,
        )
        return row_losses(runtime, model, held, range(len(held)))


def reading(found: dict[str, Any]) -> list[str]:
    """What the findings mean, in sentences."""
    most, times = log2(found["candidates"] + 1), max(REPEATS)
    lines = []
    for row in found["rows"]:
        cost = f" (ε = {row['epsilon']:,.3g})" if row["epsilon"] is not None else ""
        values = ", ".join(f"{bits:.1f} at {n}" for n, bits in row["exposure"].items())
        lines.append(
            f"{row['protection']}{cost}: mean exposure in bits by the number of repetitions: {values}; chance gives "
            f"{CHANCE:.1f}, and {most:.1f} is the most."
        )
    bare, kept = (row["exposure"][str(times)] for row in found["rows"])
    if bare < 2 * CHANCE:
        lines.append("Without protection the canaries are hardly remembered either: the run shows nothing about it.")
    elif kept < bare / 2:
        lines.append("The protection removes at least half of the exposure.")
    else:
        lines.append("The protection does not remove the exposure.")
    return lines
