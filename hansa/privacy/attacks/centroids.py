"""What the centroids of a run give away: attack them, and say what was found beside those who know nothing.

Works on offers that the run recorded (record.py). The attacker knows what every member of the federation knows: the
model, the centroid, the number of its positions. The texts behind a centroid serve for scoring alone.

The *control* attacks single texts, one of each cluster, in the same way: no averaging. Where the control fails, the
attack is too weak to say anything about averaging.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from hansa.client.host import SiloHost
from hansa.client.release_log import LoggedRelease, logged_releases
from hansa.client.runtime import Runtime
from hansa.core.errors import UserError
from hansa.core.seeds import stream
from hansa.core.tensors import Tensors
from hansa.privacy.attacks.hits import (
    MARGIN,
    MAX_RARE_COUNT,
    Frequencies,
    Score,
    Truth,
    Where,
    size_bin,
    random_baseline,
    frequency_baseline,
    score,
    combined,
)
from hansa.privacy.attacks.inversion import frozen, invert, nearest
from hansa.privacy.attacks.victim import VictimModel, table_rows, token_types
from hansa.runs.inference import open_run

Kind = Literal["embedding-inversion", "nearest-token"]
WHERE: tuple[Where, ...] = ("any", "same")
MAX_NUMBERS = 4_000_000  # numbers in one batch of soft choices: memory stays below some hundred megabytes
MIN_CONTROL = 0.5  # a control that names fewer tokens than this share says nothing


@dataclass(frozen=True)
class Target:
    """What was released, for how many positions, and what was behind it."""

    value: Tensor  # width, or positions × width
    length: int
    truth: Truth


@dataclass(frozen=True)
class AttackedCentroid:
    """The scores of one centroid: the attack's, those of knowing only frequencies, the attack's on one text alone."""

    truth: Truth
    attack_knowledge: Score
    frequency_baseline: Score
    control: Score
    layers: str


def attack_knowledge(run: Path, kind: Kind, centroids: int, say: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Attack at most so many centroids of a run, of all sizes; the findings as plain values."""
    runtime = open_run(run)
    done: list[AttackedCentroid] = []
    for released, rows in choose(run, centroids, runtime.federation.seed):
        say(f"attacking {len(rows)} centroids of {released.silo}, round {released.round}")
        done += attack_release(runtime, kind, released, rows)
    return findings(kind, done)


def choose(run: Path, limit: int, seed: int) -> list[tuple[LoggedRelease, list[int]]]:
    """Which rows of which offers to attack: from every size of cluster about as many."""
    offers = list(logged_releases(run, "offer"))
    by_size: dict[str, list[tuple[int, int]]] = {}
    for number, released in enumerate(offers):
        for row, members in enumerate(released.notes["members"]):
            by_size.setdefault(size_bin(members), []).append((number, row))
    if not by_size:
        raise UserError(
            f"{run}: no centroids were recorded; run it anew with a method that exchanges them (fedkc, fedmix) and "
            "'record: {offers: true}' in the federation file (or --set record.offers=true)"
        )
    rng = stream(seed, "audit", "centroids")
    mixed = [[found[i] for i in rng.permutation(len(found))] for _, found in sorted(by_size.items())]
    in_turn = [one for turn in zip_longest(*mixed) for one in turn if one is not None]
    picked: dict[int, list[int]] = {}
    for number, row in sorted(in_turn[:limit]):
        picked.setdefault(number, []).append(row)
    return [(offers[number], rows) for number, rows in picked.items()]


def attack_release(runtime: Runtime, kind: Kind, released: LoggedRelease, rows: Sequence[int]) -> list[AttackedCentroid]:
    """Attack these rows of an offer, and one text behind each of them as a control."""
    learner, special = runtime.learner, runtime.vocabulary.special
    learner.state.write(Tensors.of(released.received))
    tensors = released.tensors
    centroids = tensors["centroids"] if "centroids" in tensors else tensors["inputs"]  # of FedKC; of FedMix
    held = SiloHost(runtime).silo(released.silo).resident.examples("train")
    frequencies = Frequencies((held[i] for i in range(len(held))), special)
    targets, controls = [], []
    kinds = token_types(runtime)
    victim = VictimModel(learner.model, len(special), centroids.ndim == 3, kinds)
    for row in rows:
        texts = tuple(held[i].astype(np.int64) for i in released.notes["samples"][row])
        lengths = released.notes["lengths"]  # without positions, the attacker is told the longest text's
        length = lengths[row] if lengths else max(map(len, texts))
        targets.append(Target(centroids[row], length, Truth(texts, special)))
        one = int(stream(runtime.federation.seed, "audit", released.silo, row).integers(len(texts)))
        alone = table_rows(held, released.notes["samples"][row][one], len(special), kinds)
        controls.append(Target(victim.release(alone), len(alone), Truth((texts[one],), special)))
    found, single = _guess(victim, kind, targets, runtime), _guess(victim, kind, controls, runtime)
    return [
        AttackedCentroid(
            t.truth,
            score(t.truth, _at(candidates), frequencies),
            frequency_baseline(t.truth, frequencies),
            score(c.truth, _at(own), frequencies),
            "all" if victim.placed else "last",
        )
        for t, c, candidates, own in zip(targets, controls, found, single, strict=True)
    ]


def _at(candidates: list[list[int]]) -> Callable[[int], list[int]]:
    """Positions that were not released have no candidates."""
    return lambda position: candidates[position] if position < len(candidates) else []


def _guess(victim: VictimModel, kind: Kind, targets: Sequence[Target], runtime: Runtime) -> list[list[list[int]]]:
    """For every target, candidates for each of its positions."""
    banned = torch.from_numpy(runtime.vocabulary.special)
    longest = max(t.length for t in targets)
    size = max(1, MAX_NUMBERS // (longest * len(victim.table)))
    found: list[list[list[int]]] = []
    for start in range(0, len(targets), size):
        some = targets[start : start + size]
        mask = torch.tensor([[int(p < t.length) for p in range(longest)] for t in some])
        values = torch.stack([_filled(t.value, longest) if victim.placed else t.value for t in some])
        if kind == "nearest-token":
            candidates = nearest(victim.encode, victim.table, values, mask, banned)
        else:
            with frozen(victim.model):
                candidates = invert(victim.encode, victim.table, values, mask, banned, runtime.federation.seed + start)
        found += [candidates[i, : t.length].tolist() for i, t in enumerate(some)]
    return found


def _filled(value: Tensor, positions: int) -> Tensor:
    return nn.functional.pad(value[:positions], (0, 0, 0, max(0, positions - len(value))))


# ── what was found ────────────────────────────────────────────────────────────────────────────────────────────────


def findings(kind: Kind, done: Sequence[AttackedCentroid]) -> dict[str, Any]:
    """Curves over N, a row for every size of cluster, and what it comes to in words."""
    truths = [one.truth for one in done]
    attackers = {
        "attack": combined([one.attack for one in done]),
        "no averaging": combined([one.control for one in done]),
        "most frequent tokens": combined([one.frequent for one in done]),
    }
    curves = {name: {where: s.curve(where) for where in WHERE} for name, s in attackers.items()}
    curves["random tokens"] = {where: random_baseline(truths, where) for where in WHERE}
    by_size: dict[str, list[AttackedCentroid]] = {}
    for one in sorted(done, key=lambda one: len(one.truth.texts)):
        by_size.setdefault(size_bin(len(one.truth.texts)), []).append(one)
    found = {
        "kind": kind,
        "layers": done[0].layers,
        "centroids": len(done),
        "curves": curves,
        "rare": {name: _share(s) for name, s in attackers.items()},
        "sizes": [_size(name, some) for name, some in by_size.items()],
    }
    return found | {"reading": reading(found)}


def _size(name: str, some: Sequence[AttackedCentroid]) -> dict[str, Any]:
    found, known = combined([one.attack for one in some]), combined([one.frequent for one in some])
    return {
        "members": name,
        "centroids": len(some),
        "same": found.curve("same")[0],
        "same_frequent": known.curve("same")[0],
        "any": found.curve("any")[0],
        "any_frequent": known.curve("any")[0],
        "rare": _share(found),
        "rare_frequent": _share(known),
    }


def _share(score: Score) -> float | None:
    named, there = score.rare
    return named / there if there else None


def reading(found: dict[str, Any]) -> list[str]:
    """What the figures say, and what they do not."""
    first = {name: curve["same"][0] for name, curve in found["curves"].items()}
    attack_knowledge, control, known = first["attack"], first["no averaging"], first["most frequent tokens"]
    layers = f"{found['layers']}-layer{'s' if found['layers'] == 'all' else ''} centroids"
    lines = [
        f"{found['kind']} names {attack:.1%} of the tokens behind {found['centroids']} {layers} at their position with "
        f"its first guess; the most frequent tokens there name {known:.1%}, random ones {first['random tokens']:.1%}."
    ]
    rare = found["rare"]["attack"]
    if rare is not None:
        lines.append(
            f"Of tokens that a silo has at most {RARE} times it names {rare:.1%}; the most frequent tokens name "
            f"{found['rare']['most frequent tokens']:.1%}."
        )
    if control < MIN_CONTROL:
        lines.append(
            f"On single texts, without averaging, it names only {control:.1%}: it is too weak to say that averaging "
            "protects, and a stronger attack may exist."
        )
    elif attack_knowledge > known + MARGIN or (rare or 0.0) > MARGIN + (found["rare"]["most frequent tokens"] or 0.0):
        lines.append(f"So these centroids leak; from single texts, without averaging, it names {control:.1%}.")
    else:
        lines.append(f"Averaging hides what single texts give away ({control:.1%}), as far as this attack can see.")
    return lines
