"""Membership inference: tell from a model which rows of a silo it was trained on.

Yeom et al. (2018): a row with a smaller loss is more likely a member. Carlini et al. (2022), Membership Inference
Attacks From First Principles (LiRA): the loss is compared with that of shadow models, which were trained with or
without the row.

    φ = log(p/(1 − p)), p = exp(−loss)
    loss                −loss of the attacked model
    calibrated          φ − mean of φ over the shadow models without the row (the offline variant, one variance)
    likelihood ratio    log N(φ; μ_in, s_in²) − log N(φ; μ_out, s_out²); μ by row, s over all rows: shadows are few

Members are the training rows that the silo drew in some round; non-members are its validation and test rows. The score
is the area under the ROC curve (AUC): 0.5 is guessing. The *control* attacks every shadow model by its loss alone: what
the same data gives away when the silo trains alone, without protection. Where the control fails, the attack shows
nothing.

Deviations: shadow models are trained by the silo alone, on half of the rows, with the run's local optimizer for as many
steps as the silo took (at most `MAX_STEPS`); whole shadow federations would cost as many runs.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hansa.attacks.gradient import target_silo
from hansa.attacks.losses import row_losses
from hansa.attacks.statistics import Auc, Values, auc, true_positives
from hansa.client.host import SiloHost
from hansa.client.runtime import Runtime
from hansa.client.training import MicroBatches, train
from hansa.core.errors import UserError
from hansa.core.learner import Work
from hansa.core.seeds import stream, torch_seeded
from hansa.data.examples import Examples
from hansa.methods.fedavg import PlainObjective
from hansa.runs.directory import RunDirectory
from hansa.runs.inference import load
from hansa.runs.ledger import Ledger

SHADOWS = 8
MAX_ROWS = 400  # of members, and of non-members
MIN_ROWS = 20
MAX_STEPS = 1000  # of a shadow model
SAFE, LEAKS = 0.55, 0.6  # AUC: an attack below the first is near guessing, a control above the second succeeds
RARELY = 0.05  # false positives at which members found are stated, beside the AUC


@dataclass(frozen=True)
class Pool:
    """The rows that are attacked: (samples, row) of members, then of non-members."""

    runtime: Runtime
    rows: tuple[tuple[Examples, int], ...]
    members: int

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def inside(self) -> NDArray[np.bool_]:
        """Whether each row is a member."""
        return np.arange(len(self)) < self.members

    def losses(self, model: Any) -> Values:
        """The loss of every row; where the task masks tokens, all models are asked with the same masks."""
        held = {id(examples): examples for examples, _ in self.rows}
        found = [
            row_losses(self.runtime, model, one, [row for examples, row in self.rows if examples is one])
            for one in held.values()
        ]
        return np.concatenate(found)

    def batches(self, chosen: NDArray[np.bool_], steps: int, rng: np.random.Generator) -> Iterator[MicroBatches]:
        """Batches of the chosen rows, pass after pass."""
        task, vocabulary, size = self.runtime.task, self.runtime.vocabulary, self.runtime.federation.train.batch
        rows, left = np.flatnonzero(chosen), steps
        while left > 0:
            order = rng.permutation(rows)
            for start in range(0, len(order), size)[:left]:
                some = [self.rows[i] for i in order[start : start + size]]
                held = {id(examples): examples for examples, _ in some}
                yield [
                    task.batch(h, np.array([row for e, row in some if e is h]), rng, vocabulary) for h in held.values()
                ]
            left -= -(-len(order) // size)


def attack_membership(
    run: Path, silo: str | None, shadows: int = SHADOWS, say: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """Infer which rows of a silo a run was trained on; return the findings as plain values.

    ``silo``: its name; None: the smallest. ``shadows``: the number of shadow models. ``say`` gets a line of progress
    before each step. Raises `UserError` for a run without a final model, or a silo with too few rows.
    """
    runtime, model = load(run)
    name = target_silo(runtime, silo)
    pool, steps = pool_of(runtime, run, name)
    inside = pool.inside
    say(f"attacking {pool.members} members and {len(pool) - pool.members} non-members of {name}")
    losses = pool.losses(model)
    ins, outs, control = shadow_scores(pool, min(steps, MAX_STEPS), shadows, say)
    scores = {"loss": -losses, **compared(logit(losses), ins, outs)}
    rounds = [
        {"round": number, **asdict(_auc(-pool.losses(load(run, checkpoint=number)[1]), inside))}
        for number in RunDirectory(run).checkpoints()
    ]
    found = {
        "kind": "membership",
        "silo": name,
        "members": pool.members,
        "others": len(pool) - pool.members,
        "shadows": shadows,
        "rows": [
            {
                "attack": kind,
                **asdict(_auc(values, inside)),
                "found": true_positives(values[inside], values[~inside], RARELY),
            }
            for kind, values in scores.items()
        ],
        "control": control,
        "rounds": rounds,
        "protected": name in runtime.private,
    }
    return found | {"reading": reading(found)}


def pool_of(runtime: Runtime, run: Path, name: str) -> tuple[Pool, int]:
    """The rows of a silo to attack, and how many local steps it took; raises `UserError` if there are too few rows."""
    resident = SiloHost(runtime).silo(name).resident
    held, training = resident.examples("train"), runtime.federation.train
    ledger = Ledger(run)
    try:
        rounds = [number for (number,) in ledger.select("select distinct round from traffic where node=?", name)]
    finally:
        ledger.close()
    drawn = [resident.drawn(number, training) for number in rounds if number > 0]
    seen = np.unique(np.concatenate(drawn)) if drawn else np.zeros(0, np.int64)
    others = [(e, i) for split in ("valid", "test") for e in [resident.examples(split)] for i in range(len(e))]
    if min(len(seen), len(others)) < MIN_ROWS:
        raise UserError(
            f"silo '{name}' trained on {len(seen)} rows and holds out {len(others)}; membership inference needs at "
            f"least {MIN_ROWS} of each: choose another --silo, or run with a larger data.test"
        )
    rng = stream(runtime.federation.seed, "membership", name)
    size = min(MAX_ROWS, len(seen), len(others))
    members = [(held, int(i)) for i in np.sort(rng.permutation(seen)[:size])]
    chosen = [others[i] for i in np.sort(rng.permutation(len(others))[:size])]
    steps = sum(-(-len(one) // training.batch) for one in drawn)
    return Pool(runtime, (*members, *chosen), size), max(1, steps)


def shadow_scores(
    pool: Pool, steps: int, shadows: int, say: Callable[[str], None]
) -> tuple[list[Values], list[Values], dict[str, Any]]:
    """φ of each row by the shadow models with it and without it (NaN elsewhere), and the findings of the control."""
    runtime, seed = pool.runtime, pool.runtime.federation.seed
    ins, outs, inside, outside = list[Values](), list[Values](), list[Values](), list[Values]()
    for number in range(shadows):
        say(f"shadow model {number + 1} of {shadows}: {steps} steps")
        rng = stream(seed, "shadow", number)
        chosen = np.zeros(len(pool), bool)
        chosen[rng.permutation(len(pool))[: len(pool) // 2]] = True
        learner = runtime.fresh()
        work = Work(learner, learner.state.copy(), 1)
        training = runtime.federation.train.model_copy(update={"keep_optimizer": False})
        with torch_seeded(seed, "shadow", number, "dropout"):
            train(work, runtime.task, PlainObjective(), training, pool.batches(chosen, steps, rng), 1.0)
        losses = pool.losses(learner.model)
        phi = logit(losses)
        ins.append(np.where(chosen, phi, np.nan))
        outs.append(np.where(chosen, np.nan, phi))
        inside.append(-losses[chosen])
        outside.append(-losses[~chosen])
    if not shadows:
        return ins, outs, {}
    return ins, outs, asdict(_mean([auc(a, b) for a, b in zip(inside, outside, strict=True)]))


def _mean(several: list[Auc]) -> Auc:
    return Auc(*(float(np.mean([getattr(one, name) for one in several])) for name in ("value", "low", "high")))


def logit(losses: Values) -> Values:
    """φ = log(p/(1 − p)) with p = exp(−loss)."""
    found: Values = -np.log(np.expm1(np.clip(losses, 1e-6, 50.0)))
    return found


def compared(phi: Values, ins: list[Values], outs: list[Values]) -> dict[str, Values]:
    """The scores of the attacks that use shadow models; none for rows that no shadow model was trained without."""
    if not outs:
        return {}
    with_, without = np.array(ins), np.array(outs)
    known_in, known_out = ~np.isnan(with_), ~np.isnan(without)

    def centre(values: Values, known: NDArray[np.bool_]) -> Values:
        """Mean φ of each row over the shadow models that are ``known``; the mean over all rows where a row has none."""
        overall = float(values[known].mean()) if known.any() else 0.0
        counts = known.sum(axis=0)
        found: Values = np.where(counts, np.where(known, values, 0.0).sum(axis=0) / np.maximum(counts, 1), overall)
        return found

    def spread(values: Values, known: NDArray[np.bool_], mean: Values) -> float:
        """Standard deviation of φ around each row's ``mean``, pooled over all rows; at least 1e-6."""
        rest = (values - mean)[known]
        return max(float(np.sqrt(np.square(rest).sum() / max(1, known.sum() - known.any(axis=0).sum()))), 1e-6)

    mu_in, mu_out = centre(with_, known_in), centre(without, known_out)
    s_in, s_out = spread(with_, known_in, mu_in), spread(without, known_out, mu_out)
    ratio = np.square((phi - mu_out) / s_out) / 2 - np.square((phi - mu_in) / s_in) / 2
    return {"calibrated": phi - mu_out, "likelihood ratio": ratio}


def _auc(scores: Values, inside: NDArray[np.bool_]) -> Auc:
    return auc(scores[inside], scores[~inside])


def reading(found: dict[str, Any]) -> list[str]:
    """What the findings mean, in sentences."""
    best = max(found["rows"], key=lambda row: row["value"])
    lines = [
        f"Of {found['members']} training rows and {found['others']} held-out rows of {found['silo']}, the strongest "
        f"attack ({best['attack']}) tells members with an AUC of {best['value']:.3f} ({best['low']:.3f} to "
        f"{best['high']:.3f}); guessing gives 0.5."
    ]
    control = found["control"]
    if control and control["value"] <= LEAKS:
        lines.append(
            f"The control, a model of the silo alone without protection, reaches only {control['value']:.3f}: the data "
            "or the number of steps give this attack nothing to find, so the run is not shown to be safe."
        )
    elif control:
        verdict = "near guessing" if best["value"] <= SAFE else "above guessing"
        lines.append(f"The control reaches {control['value']:.3f}; the attack on the run is {verdict}.")
    lines.append("More shadow models, or knowledge that this attack does not have, may find more.")
    return lines
