"""Attacks on the centroids that silos shared: how many tokens of the texts behind a centroid can be recovered.

They work on knowledge in the release log of a run (client/release_log.py). The attacker knows what every member of the
federation knows: the model, the centroid and the number of its positions. The texts behind a centroid are used for
scoring only.

The *control* attacks single texts in the same way, one of each cluster: without averaging. Where the control fails, the
attack is too weak to show anything about averaging.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from hansa.attacks.hits import (
    MARGIN,
    MAX_RARE_COUNT,
    Frequencies,
    Score,
    Truth,
    Where,
    combined,
    frequency_baseline,
    random_baseline,
    score,
    size_bin,
)
from hansa.attacks.inversion import frozen, invert, nearest
from hansa.attacks.victim import VictimModel, table_rows, token_types
from hansa.client.host import SiloHost
from hansa.client.release_log import LoggedRelease, logged_releases
from hansa.client.runtime import Runtime
from hansa.core.errors import UserError
from hansa.core.seeds import stream
from hansa.core.tensors import Tensors
from hansa.runs.inference import open_run

Kind = Literal["embedding-inversion", "nearest-token"]
WHERE: tuple[Where, ...] = ("any", "same")
MAX_NUMBERS = 4_000_000  # in one batch of soft choices: memory stays below a few hundred megabytes
CENTROIDS = ("centroids", "inputs")  # names of the tensors that are attacked: of FedKC, of FedMix
MIN_CONTROL = 0.5  # a control that recovers a smaller share of the tokens shows nothing


@dataclass(frozen=True)
class Target:
    """A released centroid, the number of its positions, and the texts behind it."""

    value: Tensor  # width, or positions × width
    length: int
    truth: Truth


@dataclass(frozen=True)
class AttackedCentroid:
    """The scores of one centroid: of the attack, of the most frequent tokens, and of the attack on a single text."""

    truth: Truth
    attack: Score
    frequent: Score
    control: Score
    layers: str


def attack_knowledge(
    run: Path, kind: Kind, centroids: int, say: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """Attack at most ``centroids`` centroids of a run, of all cluster sizes; return the findings as plain values.

    ``say`` gets a line of progress before each attack. Raises `UserError` if the release log has no knowledge.
    """
    runtime = open_run(run)
    done: list[AttackedCentroid] = []
    for released, rows in choose(run, centroids, runtime.federation.seed):
        say(f"attacking {len(rows)} centroids of {released.silo}, round {released.round}")
        done += attack_release(runtime, kind, released, rows)
    return findings(kind, done)


def choose(run: Path, limit: int, seed: int) -> list[tuple[LoggedRelease, list[int]]]:
    """Which rows of which logged releases to attack, at most ``limit``: about as many of every cluster size.

    Raises `UserError` if the release log has no knowledge.
    """
    logged = list(logged_releases(run, "knowledge"))
    by_size: dict[str, list[tuple[int, int]]] = {}
    for number, released in enumerate(logged):
        for row, members in enumerate(released.notes["members"]):
            by_size.setdefault(size_bin(members), []).append((number, row))
    if not by_size:
        raise UserError(
            f"{run}: its release log has no centroids; run the federation again with a method that shares them (fedkc, "
            "fedmix) and 'release_log: {knowledge: true}' in its file (or --set release_log.knowledge=true)"
        )
    rng = stream(seed, "audit", "centroids")
    mixed = [[found[i] for i in rng.permutation(len(found))] for _, found in sorted(by_size.items())]
    in_turn = [one for turn in zip_longest(*mixed) for one in turn if one is not None]
    picked: dict[int, list[int]] = {}
    for number, row in sorted(in_turn[:limit]):
        picked.setdefault(number, []).append(row)
    return [(logged[number], rows) for number, rows in picked.items()]


def attack_release(
    runtime: Runtime, kind: Kind, released: LoggedRelease, rows: Sequence[int]
) -> list[AttackedCentroid]:
    """Attack rows of a logged release, and one text behind each of them as a control."""
    learner, special = runtime.learner, runtime.vocabulary.special
    learner.state.write(Tensors.of(released.received))
    tensors = released.tensors
    name = next((name for name in CENTROIDS if name in tensors), None)
    if name is None:
        raise UserError(
            f"{released.folder}: the shared knowledge has the tensors {', '.join(tensors)}, and the attack needs "
            "centroids (fedkc, fedmix)"
        )
    centroids = tensors[name]
    held = SiloHost(runtime).silo(released.silo).resident.examples("train")
    frequencies = Frequencies((held[i] for i in range(len(held))), special)
    targets, controls = [], []
    types = token_types(runtime)
    victim = VictimModel(learner.model, len(special), centroids.ndim == 3, types)
    for row in rows:
        texts = tuple(held[i].astype(np.int64) for i in released.notes["samples"][row])
        lengths = released.notes["lengths"]  # without positions, the attacker is given the length of the longest text
        length = lengths[row] if lengths else max(map(len, texts))
        targets.append(Target(centroids[row], length, Truth(texts, special)))
        one = int(stream(runtime.federation.seed, "audit", released.silo, row).integers(len(texts)))
        alone = table_rows(held, released.notes["samples"][row][one], len(special), types)
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
    """The candidates by position; a position that was not released has none."""
    return lambda position: candidates[position] if position < len(candidates) else []


def _guess(victim: VictimModel, kind: Kind, targets: Sequence[Target], runtime: Runtime) -> list[list[list[int]]]:
    """For every target, the candidates for each of its positions."""
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


# ── findings ──────────────────────────────────────────────────────────────────────────────────────────────────────


def findings(kind: Kind, done: Sequence[AttackedCentroid]) -> dict[str, Any]:
    """The findings as plain values: curves over N, a row for every cluster size, and sentences."""
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
    recovered, total = score.rare
    return recovered / total if total else None


def reading(found: dict[str, Any]) -> list[str]:
    """What the findings mean, and what they do not show, in sentences."""
    first = {name: curve["same"][0] for name, curve in found["curves"].items()}
    attack, control, known = first["attack"], first["no averaging"], first["most frequent tokens"]
    layers = f"{found['layers']}-layer{'s' if found['layers'] == 'all' else ''} centroids"
    lines = [
        f"{found['kind']} recovers {attack:.1%} of the tokens behind {found['centroids']} {layers} at their position "
        f"with its first guess; the most frequent tokens at the position give {known:.1%}, random tokens "
        f"{first['random tokens']:.1%}."
    ]
    rare = found["rare"]["attack"]
    if rare is not None:
        lines.append(
            f"Of tokens that a silo has at most {MAX_RARE_COUNT} times it recovers {rare:.1%}; the most frequent "
            f"tokens give {found['rare']['most frequent tokens']:.1%}."
        )
    if control < MIN_CONTROL:
        lines.append(
            f"On single texts, without averaging, it recovers only {control:.1%}: it is too weak to show that "
            "averaging protects, and a stronger attack may exist."
        )
    elif attack > known + MARGIN or (rare or 0.0) > MARGIN + (found["rare"]["most frequent tokens"] or 0.0):
        lines.append(f"These centroids leak tokens; from single texts, without averaging, it recovers {control:.1%}.")
    else:
        lines.append(f"Averaging hides the tokens of single texts ({control:.1%}) from this attack.")
    return lines
