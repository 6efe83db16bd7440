"""A silo's own model, beside the shared one (Manoel et al., 2023, Section 2.4 and Table 6; Deng et al., 2020).

    personalised   θ_own: from the shared model of a chosen round, trained on the silo's data alone
    interpolated   θ_int = α·θ_own + (1 − α)·θ                                                       (Equation 3)
        sweep      α from 21 values in [0, 1], the one of least loss on validation data (Figure 3); 0, the shared model,
                   unless that one is ahead of it by more than a standard error, in loss and in accuracy: a few
                   samples must not decide by chance, and a better loss may still guess worse (``fallback``)
        adaptive   APFL: θ_own ← θ_own − η·α·∇f(θ_int),  α ← α − η_α·⟨∇f(θ_int), θ_own − θ⟩, kept in [0, 1]
    nearby         θ_own starts from a mixture of the silos that are most like this one:
                   θ_start − ½·(uᵢ + Σⱼ sᵢⱼ·uⱼ),  sᵢⱼ ∝ max(0, cos(uᵢ, uⱼ)) over the nearest silos j

θ: the shared model; uᵢ = θ_start − θ_own of silo i after half of its personal rounds: an update like any other, and all
that is shared. The plain handoff it is compared with does as much local work. What leaves a silo are its models'
scores, α and, only for ``nearby``, uᵢ, from which the half-trained personal model can be computed; the final one stays.
Deviations: θ stays as it is while θ_own learns, as in the paper's post-hoc interpolation; APFL proper moves both.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import ceil, inf, sqrt
from statistics import fmean, stdev

import torch
from torch import Tensor

from hansa.client.evaluation import whole
from hansa.client.resident import ResidentSilo
from hansa.client.training import MicroBatches, Optimizer, train
from hansa.config.federation import Federation
from hansa.config.sections import Personal as Settings
from hansa.config.sections import Training
from hansa.core.device import CPU
from hansa.core.learner import Learner, Work
from hansa.core.messages import PART, PARTS, Failure, Personalise, PersonalScores, Scores
from hansa.core.schedules import schedule_factor
from hansa.core.seeds import torch_seeded
from hansa.core.tensors import Layout, Tensors, is_finite
from hansa.tasks.base import Task

ALPHAS = tuple(i / 20 for i in range(21))
ENOUGH = 2000  # validation samples: large silos need not look at all of them 21 times
FEDERATED, OWN, MIXED, NEARBY = "federated", "personalised", "interpolated", "nearby"


def personalise(silo: ResidentSilo, request: Personalise, settings: Settings) -> PersonalScores | Failure:
    """Train the silo's own model; then give its update, or weigh it against the shared one and keep the better."""
    learner = silo.runtime.learner
    silo.load(request.round + 1, request.model)
    shared = learner.flat.clone()
    silo.load(request.round + 1, request.start)
    start = learner.flat.clone()
    alpha = _train(silo, request, settings, shared)
    own = learner.flat.clone()
    if not is_finite(own):
        return Failure("its own model diverged: values that are not finite (lower personal.train.lr)")
    if request.share:
        gradient = Tensors(learner.layout, start - own).only(request.start.layout.names).to(CPU)
        return PersonalScores(gradient, {}, {}, {}, alpha)
    curves: dict[str, tuple[float, ...]] = {}
    if settings.mix == "sweep":
        alpha, curves = _sweep(silo, own, shared, settings)
    models = ({FEDERATED: 0.0} if request.label == OWN else {}) | {request.label: 1.0}
    if settings.mix != "none":
        models[MIXED if request.label == OWN else f"{request.label}, {MIXED}"] = alpha
    scored = _scores(silo, own, shared, {*models.values()}, settings.draws)
    losses = {name: scored[share][0] for name, share in models.items()}
    sums = {name: scored[share][1] for name, share in models.items()}
    best = min(losses, key=lambda name: losses[name])
    _keep(silo, own, shared, models[best], best, losses[best])
    return PersonalScores(Tensors(Layout((), ()), torch.zeros(0)), sums, losses, curves, alpha)


def _sweep(
    silo: ResidentSilo, own: Tensor, shared: Tensor, settings: Settings
) -> tuple[float, dict[str, tuple[float, ...]]]:
    """The α to keep, and each metric over all of them on validation data (Figure 3)."""
    looks = {a: overall(silo.runtime.task, _look(silo, own, shared, a)) for a in ALPHAS}
    curves = {metric: tuple(look[metric] for look in looks.values()) for metric in looks[0.0]}
    alpha = min(ALPHAS, key=lambda a: looks[a]["loss"])
    if not settings.fallback:
        return alpha, curves
    plain, mixed = (_look(silo, own, shared, a, settings.draws) for a in (0.0, alpha))
    return (alpha if ahead(silo.runtime.task, plain, mixed) else 0.0), curves


def _scores(
    silo: ResidentSilo, own: Tensor, shared: Tensor, shares: set[float], draws: int
) -> dict[float, tuple[float, dict[str, dict[str, float]]]]:
    """Of each mixture, which at 0 and at 1 is one of the others: its validation loss, and its sums on the test set."""
    found = {}
    for share in sorted(shares):
        loss = overall(silo.runtime.task, _look(silo, own, shared, share))["loss"]
        # The first draw asks the questions of the final evaluation.
        found[share] = loss, whole(silo.score("test", 1.0, PARTS, decode=True, draws=draws)).sums
    return found


def personal_training(federation: Federation, settings: Settings) -> Training:
    """How a personal model is trained: by its own optimizer, on as much data as in a federated round."""
    amount = {"samples": federation.train.samples, "max_batches": federation.train.max_batches}
    return (settings.train or federation.baseline).model_copy(update=amount | {"keep_optimizer": False})


def _train(silo: ResidentSilo, request: Personalise, settings: Settings, shared: Tensor) -> float:
    runtime = silo.runtime
    federation, learner = runtime.federation, runtime.learner
    training = personal_training(federation, settings)
    rounds = settings.rounds if not settings.nearby else max(1, settings.rounds // 2)  # half of them in each leg
    first = request.round + 1 + request.leg * rounds
    batches: Iterator[MicroBatches] = chain.from_iterable(
        silo.batches(r, training) for r in range(first, first + rounds)
    )
    mixing = None
    if settings.mix == "adaptive":
        mixing = Mixing(learner, shared, training, settings.alpha, settings.alpha_lr)
    work = Work(learner, request.start, first)
    steps = rounds * ceil(training.per_round(len(silo.examples("train"))) / training.batch)
    before, total = request.leg * steps, steps * (2 if settings.nearby else 1)
    with torch_seeded(federation.seed, first, silo.name, "personal"):
        train(
            work,
            runtime.task,
            silo.method.objective,
            training,
            batches,
            lambda step: schedule_factor(training.schedule, before + step + 1, total),
            mixing,
        )
    if mixing is None:
        return 1.0
    learner.flat.copy_(mixing.own)
    return mixing.alpha


@dataclass
class Mixing:
    """APFL's optimiser: the model computes with θ_int, the step is taken by θ_own and by α."""

    learner: Learner
    shared: Tensor
    training: Training
    alpha: float
    alpha_lr: float
    own: Tensor = field(init=False)
    flat: Tensor = field(init=False)  # θ_own and its gradient, as the inner optimiser sees them
    grad: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.own = self.flat = self.learner.flat.clone()
        self.grad = torch.zeros_like(self.own)
        self.matrices = self.learner.matrices
        self.inner = Optimizer(self, self.training)
        self._mix()

    def rate(self, lr: float) -> None:
        """Set the learning rate of the next step."""
        self.inner.rate(lr)

    def step(self) -> None:
        """Move the silo's own model and α by the gradient of the interpolated model."""
        gradient = self.learner.grad
        slope = float(torch.dot(gradient, self.own - self.shared))
        torch.mul(gradient, self.alpha, out=self.grad)
        self.inner.step()
        self.alpha = min(1.0, max(0.0, self.alpha - self.alpha_lr * slope))
        self._mix()

    def _mix(self) -> None:
        torch.lerp(self.shared, self.own, self.alpha, out=self.learner.flat)


def _look(silo: ResidentSilo, own: Tensor, shared: Tensor, alpha: float, draws: int = 1) -> Scores:
    """How the model at ``alpha`` does on validation data, part by part; it is left in the resident model."""
    torch.lerp(shared, own, alpha, out=silo.runtime.learner.flat)
    return silo.score("valid", min(1.0, ENOUGH / max(1, len(silo.examples("valid")))), PARTS, draws=draws)


def ahead(task: Task, shared: Scores, mixed: Scores) -> bool:
    """Whether an interpolation beats the shared model by more than one standard error.

    The standard error is that of their difference over the parts of the validation data, in loss and, where the
    task has it, in accuracy.
    """
    before, after = _by_part(task, shared), _by_part(task, mixed)
    losses = [b["loss"] - a["loss"] for b, a in zip(before, after, strict=True)]
    hits = [a["accuracy"] - b["accuracy"] for b, a in zip(before, after, strict=True) if "accuracy" in a]
    return _sure(losses) and (not hits or _sure(hits))


def _sure(gains: Sequence[float]) -> bool:
    return len(gains) > 1 and fmean(gains) > stdev(gains) / sqrt(len(gains))


def _by_part(task: Task, scores: Scores) -> list[dict[str, float]]:
    """The metrics of each part of the data, all groups together."""
    found: dict[str, Scores] = {}
    for name, sums in scores.sums.items():
        part = name.rpartition(PART)[2]
        found[part] = found.get(part, Scores({})) + Scores({"": sums})
    return [overall(task, found[part]) for part in sorted(found)]


def overall(task: Task, scores: Scores) -> dict[str, float]:
    """Metrics over all groups together."""
    total = Scores({})
    for sums in scores.sums.values():
        total = total + Scores({"": sums})
    return {"loss": inf} | task.metrics(total.sums.get("", {}))


def _keep(silo: ResidentSilo, own: Tensor, shared: Tensor, alpha: float, name: str, loss: float) -> None:
    """Write the silo's model, unless an earlier one was better on the same validation data."""
    note = silo.home / "personal.json"
    if note.is_file() and json.loads(note.read_text())["loss"] <= loss:
        return
    torch.lerp(shared, own, alpha, out=silo.runtime.learner.flat)
    silo.export()
    note.write_text(json.dumps({"model": name, "alpha": alpha, "loss": loss}))
