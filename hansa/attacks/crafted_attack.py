"""Measure what crafted models read of one silo's texts, with each defence on and off (see crafted.py).

The silo answers a request to train, as it would in round 1; the run is not changed. *Recovered* is the share of the
distinct ordinary tokens of the texts that the attack names; *placed*, of their (token, position) pairs; *right*, the
share of the named pairs that are true. The baseline is what the most frequent tokens of the silo would reach.

Distance: for every limit, several crafted models are drawn towards the honest one until each part is within that
distance; the row shows the one that read most, which an attacker could not have known in advance.
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from hansa.attacks.crafted import Craft, craft, distances, loaded, read_bins, within
from hansa.attacks.gradient import DELTA, attackable, clipped, rank_by_span, recovered, target_silo
from hansa.attacks.hits import MARGIN, Frequencies
from hansa.attacks.victim import token_types
from hansa.client.resident import ResidentSilo
from hansa.client.runtime import Runtime
from hansa.client.silo import Silo
from hansa.client.state import StateFolder
from hansa.config.nodes import leaves
from hansa.config.sections import Samples, Upload
from hansa.core.errors import RunFailed
from hansa.core.messages import Train, Update
from hansa.core.tensors import Tensors
from hansa.privacy.dp.accounting import epsilon
from hansa.runs.directory import RunDirectory
from hansa.runs.inference import open_run

BATCH, LEAST = 8, 32  # samples behind the attacked update; the second is the least that policies should ask for
LR = 0.1  # of the plain SGD step that is attacked
CLIP = 1.0
NOISES = (1e-6, 1e-4, 0.01, 1.0)
LIMITS = (100.0, 10.0, 3.0, 1.0, 0.3, 0.1, 0.03)  # of the relative distance from the honest model
NEAR = (  # crafted models that are tried for each limit
    Craft(),
    Craft(sharpness=100.0, stretch=30.0),
    Craft(sharpness=30.0, stretch=10.0, amplify=3.0),
    Craft(sharpness=30.0, stretch=3.0, amplify=1.0, mix=False),
    Craft(bins=64, sharpness=30.0, stretch=3.0, amplify=1.0, mix=False),
    Craft(bins=16, sharpness=10.0, stretch=1.0, amplify=1.0, mix=False),
    Craft(bins=4, sharpness=10.0, stretch=1.0, amplify=1.0, mix=False),
    Craft(bins=1, sharpness=10.0, stretch=1.0, amplify=1.0, mix=False),
)


@dataclass(frozen=True)
class Setting:
    """One row of the table: what the silo trains, on how much, and which defence its update leaves with."""

    name: str
    adapt: Literal["full", "frozen-embeddings", "lora"] = "full"
    batch: int = BATCH
    whole_round: bool = False
    optimizer: Literal["sgd", "adam"] = "sgd"
    silos: int = 1  # whose updates are summed: secure aggregation
    clip: float | None = None
    noise: float = 0.0
    honest: bool = False  # the model is not crafted
    limit: float | None = None  # of the distance from the honest model
    tried: tuple[Craft, ...] = field(default=(Craft(),))


def settings(silos: int) -> Iterator[Setting]:
    """The rows of the table, for a federation of so many silos."""
    yield Setting("none")
    yield Setting("(honest model)", honest=True)
    yield Setting(f"at least {LEAST} samples", batch=LEAST)
    yield Setting("a whole round", whole_round=True)
    yield Setting("local Adam", optimizer="adam")
    yield Setting("frozen embeddings", adapt="frozen-embeddings")
    yield Setting("LoRA adapters", adapt="lora")
    yield Setting("LoRA adapters, one text", adapt="lora", batch=1)
    if silos > 1:
        yield Setting(f"secure aggregation of {silos} silos", silos=silos)
    yield Setting(f"clipping to {CLIP:g}", clip=CLIP)
    for z in NOISES:
        yield Setting(f"clipping to {CLIP:g}, noise {z:g}×", clip=CLIP, noise=z)
    for limit in LIMITS:
        yield Setting(f"distance at most {limit:g}", limit=limit, tried=NEAR)


def attack_with_crafted_models(
    run: Path, silo: str | None, say: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """Attack the update of one silo with crafted models, with every defence; return the findings as plain values.

    ``silo``: its name; None: the smallest. ``say`` gets a line of progress before each attack. Raises `UserError` for
    a run whose silos send no plain update, and for a model that cannot be crafted.
    """
    runtime = open_run(run)
    attackable(runtime, run)
    name, nodes = target_silo(runtime, silo), list(leaves(runtime.federation.silos))
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for number, one in enumerate(settings(len(nodes))):
            say(f"attacking {name}, {one.name}")
            bench = Bench(_variant(runtime, one), Path(folder) / str(number), name, nodes)
            rows.append(bench.row(one))
    found = {"kind": "crafted-model", "silo": name, "batch": BATCH, "rows": rows, "honest": honest_distance(runtime)}
    return found | {"reading": reading(found)}


def _variant(runtime: Runtime, one: Setting) -> Runtime:
    """The runtime of the same run with the row's settings: one plain step, no defence of the silo's own."""
    federation = runtime.federation
    limits: dict[str, Any] = {"optimizer": one.optimizer, "lr": LR if one.optimizer == "sgd" else 1e-3, "clip": None}
    if not one.whole_round:
        limits |= {"batch": one.batch, "max_batches": 1, "samples": Samples(epochs=1), "steps": None}
        limits |= {"micro_batch": None, "momentum": 0.0, "weight_decay": 0.0}
    silos = {n: node.model_copy(update={"privacy": None}) for n, node in leaves(federation.silos).items()}
    changed = {
        "model": federation.model.model_copy(update={"adapt": one.adapt}),
        "train": federation.train.model_copy(update=limits),
        "silos": silos,
        "upload": Upload(),
        "aggregate": None,
        "secure_aggregation": None,
    }
    return Runtime(federation.model_copy(update=changed), runtime.folder)


class Bench:
    """The silos of a run, who answer a coordinator that sends crafted models."""

    def __init__(self, runtime: Runtime, folder: Path, name: str, nodes: Sequence[str]) -> None:
        self.runtime, self.folder, self.name, self.nodes = runtime, folder, name, nodes
        self.honest = runtime.start.only(runtime.shared.names).copy()
        self.special: NDArray[np.bool_] = runtime.vocabulary.special
        self.types = token_types(runtime)
        self.sent = 0

    def row(self, one: Setting) -> dict[str, Any]:
        """Attack with every crafted model of the setting; return the row of the one that read most."""
        target = self._silo(self.name)
        held = target.resident.examples("train")
        drawn = target.resident.drawn(1, self.runtime.federation.train)
        texts = [held[i] for i in dict.fromkeys(drawn.tolist())]
        pairs = {(int(t), p) for text in texts for p, t in enumerate(text) if not self.special[t]}
        tokens = {token for token, _ in pairs}
        length = max(map(len, texts))
        common = Frequencies((held[i] for i in range(len(held))), self.special).total.most_common(len(tokens))
        best: dict[str, Any] = {}
        for how in one.tried:
            sent = self._crafted(one, how, length)
            update = self._update(one, sent)
            with loaded(self.runtime.learner.model, sent, self.honest):
                model = self.runtime.learner.model
                named = read_bins(update, model, how, self.special, length, self.types)
                span = None if named is not None else rank_by_span(update, model, self.special, length, self.types)
            guessed = {token for token, _ in named} if named is not None else set((span or [])[: len(tokens)])
            found = {
                "recovered": len(guessed & tokens) / max(1, len(tokens)),
                "placed": None if named is None else len(named & pairs) / max(1, len(pairs)),
                "right": len(named & pairs) / len(named) if named else None,
                "distance": max(distances(sent, self.honest, self.runtime.parts).values()),
                "bins": how.bins,
            }
            if not best or found["recovered"] > best["recovered"]:
                best = found
        return {
            "defence": one.name,
            "texts": len(texts),
            "tokens": len(tokens),
            "frequent": recovered([token for token, _ in common], tokens),
            "epsilon": epsilon(one.noise, 1, DELTA) if one.noise else None,
            "limit": one.limit,
            **best,
        }

    def _crafted(self, one: Setting, how: Craft, length: int) -> Tensors:
        if one.honest:
            return self.honest.copy()
        model = self.runtime.learner.model
        self.runtime.learner.state.write(self.honest)
        sent = craft(model, self.honest, how, length, len(self.special), self.types)
        return sent if one.limit is None else within(sent, self.honest, self.runtime.parts, one.limit)

    def _silo(self, name: str) -> Silo:
        self.sent += 1
        node = leaves(self.runtime.federation.silos)[name]
        return Silo(ResidentSilo(name, node, self.runtime, StateFolder(self.folder / str(self.sent) / name / "memory")))

    def _update(self, one: Setting, sent: Tensors) -> dict[str, torch.Tensor]:
        """What the coordinator gets: the silo's update, or the mean of all silos', with the row's defence."""
        total = Tensors.zeros(self.honest.layout)
        asked = self.nodes if one.silos > 1 else [self.name]
        slot = self.runtime.method.shared_state
        for name in asked:
            state = slot.begin(sent.layout) if slot is not None else None
            reply = self._silo(name).answer(Train(1, sent, shared_state=state))
            if not isinstance(reply, Update):
                raise RunFailed(f"silo '{name}' sent no update that could be attacked: {getattr(reply, 'reason', '')}")
            total.flat.add_(reply.gradient.flat, alpha=1 / len(asked))
        update = total.named()
        return update if one.clip is None else clipped(update, one.clip, one.noise, self.runtime.federation.seed)


def honest_distance(runtime: Runtime) -> float | None:
    """How far the honest run moved from its start, in the part that moved most; None without a checkpoint."""
    directory = RunDirectory(runtime.folder)
    rounds = directory.checkpoints()
    if not rounds:
        return None
    reached = directory.restore(rounds[-1], {}).model
    start = runtime.start.only(reached.layout.names)
    return max(distances(reached, start, runtime.parts).values())


def reading(found: dict[str, Any]) -> list[str]:
    """What the findings mean, in sentences."""
    rows = {row["defence"]: row for row in found["rows"]}
    bare = rows["none"]
    lines = [
        f"A crafted model reads {bare['recovered']:.1%} of the {bare['tokens']} distinct tokens of {bare['texts']} "
        f"texts of {found['silo']} from one step without a defence; guessing the most frequent tokens gives "
        f"{bare['frequent']:.1%}, the honest model {rows['(honest model)']['recovered']:.1%}."
    ]
    if (bare["placed"] or 0.0) <= MARGIN:  # frequent tokens say nothing about positions
        return [*lines, "The attack is too weak on this model to show anything about defences."]
    open_, shut = list[str](), list[str]()
    for name, row in rows.items():
        if name not in ("none", "(honest model)"):
            beyond = row["recovered"] > (row["frequent"] + MARGIN if row["placed"] is None else MARGIN)
            (open_ if beyond else shut).append(f"{name} ({row['recovered']:.1%})")
    if open_:
        lines.append(f"Tokens still get through with: {'; '.join(open_)}.")
    if shut:
        lines.append(
            f"At most {MARGIN:.0%}, or no more than frequent tokens give, get through with: {'; '.join(shut)}."
        )
    if found["honest"] is not None:
        lines.append(
            f"The honest run itself moved by {found['honest']:.2g} of its start's norm, in the part that moved most."
        )
    lines.append(
        "A better crafted model may read more: a distance or a defence that withstands these is not proven safe."
    )
    return lines
