"""Which models a silo works on: one per round, close to the last one and to the approved start.

A coordinator that may send any weights can craft them so that the update, or the scores, spell out the text (Fowl et
al., 2022, Robbing the Fed; Fowl et al., 2023, Decepticons). A silo therefore keeps, for each run and on its own disk,
the digest of the model of every round and the last model it accepted, and refuses

- a second model for the same round: `Train` of round r+1 starts from the model of round r, which `Evaluate` of round r
  scores; so a coordinator can ask about the one model that its rounds lead to, and about no other;
- a model with tensors or shapes that the approved start does not have, or values that are not finite; and one that
  lacks tensors that every request has: the silo would use what its own training left in their place;
- a model that lies too far from the last accepted one, or from the start: for every part p of the model
  ‖θ_p − θ'_p‖ ≤ limit · max(‖θ⁰_p‖, 0.02·√d_p), with the limits of the policy; θ⁰: the start, d_p: number of values.

A state that the server shares beside the model, such as SCAFFOLD's control variate, moves the silo's model while it
trains: one per round is accepted, and η·K·‖c_p‖ counts as a step (η: learning rate, K: the silo's steps in a round).

The distances go into the audit log. A model within the limits may still be crafted; `hansa audit attack --kind
crafted-model` measures what such a model reveals.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from math import sqrt
from pathlib import Path
from typing import Any

import torch

from hansa.core.messages import AdvertiseKeys, Evaluate, Personalise, Request, ShareKnowledge, Train
from hansa.core.tensors import Layout, Tensors, is_finite
from hansa.files import write_file
from hansa.privacy.policy.limits import Limits
from hansa.privacy.secure_aggregation.announcement import model_digest

LEAST_DEVIATION = 0.02  # of a value: parts whose norm is smaller are measured against this one, as new heads are zero
START = 0  # the round of the starting model
SAME = 1e-3  # distance up to which a model counts as the approved start: other versions of torch round differently


@dataclass(frozen=True)
class Received:
    """A model in a request: which round's it is, and for what it was sent."""

    round: int  # the model after this round; 0: the start
    purpose: str
    model: Tensors

    @cached_property
    def digest(self) -> str:
        """The digest of the model."""
        return model_digest(self.model)


@dataclass(frozen=True)
class ModelJudgement:
    """What the check found: the reason for a refusal, empty if there is none, and figures for the audit log."""

    refusal: str = ""
    figures: dict[str, Any] = field(default_factory=dict)


def received_models(request: Request) -> list[Received]:
    """The models in a request. A model that did not travel again was checked when it came."""
    match request:
        case Train() if request.model.layout.names:
            return [Received(request.round - 1, "train", request.model)]
        case ShareKnowledge():
            return [Received(request.round - 1, "train", request.model)]
        case Evaluate() if request.model.layout.names:
            return [Received(request.round, "evaluate", request.model)]
        case Personalise():
            return [Received(request.round, "evaluate", request.model)]
        case _:
            return []


class ModelHistory:
    """The models of one run that a silo has accepted.

    ``folder``: where the silo keeps them; ``start``: the approved start; ``part_of``: tensor → part of the model;
    ``one_model``: whether scores are asked of the very model that the next round starts from (false on trees of
    models, for asynchronous methods and for partial downlinks); ``whole``: the tensors that every model has (empty on
    trees of models and for partial downlinks); ``reach``: learning rate times steps of a round, by which a shared state
    moves the silo's model.
    """

    def __init__(
        self,
        folder: Path,
        start: Callable[[], Tensors],
        part_of: Callable[[str], str],
        one_model: bool = True,
        whole: Callable[[], Iterable[str]] = tuple,
        reach: Callable[[], float] = float,
    ) -> None:
        self._file, self._last_file = folder / "models.json", folder / "last_model.bin"
        self._start, self._part_of, self._one_model, self._whole = start, part_of, one_model, whole
        self._reach = reach
        self._digests: dict[str, str] = self._read()
        self._last: Tensors | None = None

    @cached_property
    def _scales(self) -> dict[str, float]:
        return part_scales(self._start(), self._part_of)

    def judge(self, request: Request, models: list[Received], limits: Limits) -> ModelJudgement:
        """Check the ``models`` of a request; accepted ones are remembered, on disk, before this returns."""
        figures: dict[str, Any] = {}
        if isinstance(request, AdvertiseKeys):
            return self._announced(request)
        if problem := self._lacking(request):
            return ModelJudgement(problem)
        for received in models:
            found = self._judge(received, limits)
            figures |= found.figures
            if found.refusal:
                return ModelJudgement(found.refusal, figures)
        if isinstance(request, Personalise):
            return self._judge_start(request, limits, figures)
        if isinstance(request, Train) and request.shared_state is not None:
            return ModelJudgement(self._judge_state(request.round, request.shared_state, limits), figures)
        return ModelJudgement("", figures)

    def _lacking(self, request: Request) -> str:
        """Why a request has no whole model, and none that was sent before; empty if it has what it needs."""
        if not isinstance(request, Train | Evaluate | ShareKnowledge | Personalise):
            return ""
        sent = {*request.model.layout.names}
        if not sent and isinstance(request, Train) and request.knowledge is not None and request.knowledge.model_held:
            return ""
        missing = next((name for name in self._whole() if name not in sent), "")
        return f"its model has no tensor '{missing}'" if missing else ""

    def _judge(self, received: Received, limits: Limits) -> ModelJudgement:
        model, digest, key = received.model, received.digest, self._name(received.round, received.purpose)
        figures: dict[str, Any] = {"model": digest}
        known = self._digests.get(key)
        if known == digest:
            return ModelJudgement("", figures)
        if known is not None:
            return ModelJudgement(
                f"it is another model for round {received.round} than the one that was sent before", figures
            )
        start = self._start()
        if problem := _unknown_tensors(model.layout, start.layout):
            return ModelJudgement(problem, figures)
        if not is_finite(model.flat):
            return ModelJudgement("the model has values that are not finite", figures)
        for name, base, limit in (
            ("step", self._last_model(start), limits.max_model_step),
            ("drift", start, limits.max_model_drift),
        ):
            # Both are measured against the norms of the start, which a coordinator cannot raise step by step.
            part, distance = largest_distance(model, base, self._part_of, self._scales)
            figures |= {name: round(distance, 4), f"{name}_part": part}
            limit = SAME if received.round == START else limit
            if not distance <= limit:
                since = "the last accepted model" if name == "step" else "the approved start"
                return ModelJudgement(
                    f"part '{part}' of the model lies {distance:.3g} times its norm from {since}, and the policy "
                    f"accepts {limit:g} (limits.max_model_{name})",
                    figures,
                )
        self._accept(key, digest, model)
        return ModelJudgement("", figures)

    def _judge_state(self, round: int, state: Tensors, limits: Limits) -> str:
        """Why a state that the server shares is refused: it would move the silo's model further than a model may."""
        key, digest, start = f"{round} shared state", model_digest(state), self._start()
        if (known := self._digests.get(key)) is not None:
            return "" if known == digest else f"it has another shared state for round {round} than the one before"
        if not is_finite(state.flat):
            return "the shared state has values that are not finite"
        # Tensors that the model does not have are the business of the method, which the administrator approved.
        like_model = {name: values for name, values in state.named().items() if name in start.layout.names}
        base = self._last_model(start).only(like_model)
        moved = Tensors(base.layout, base.flat.clone())
        for name, values in like_model.items():
            if values.shape != moved[name].shape:
                return f"the shared state has a tensor '{name[:80]}' of another shape than the model's"
            moved[name].sub_(values, alpha=self._reach())
        part, distance = largest_distance(moved, base, self._part_of)
        if not distance <= limits.max_model_step:
            return (
                f"the shared state would move part '{part}' of the model by {distance:.3g} times its norm in a round, "
                f"and the policy accepts {limits.max_model_step:g} (limits.max_model_step)"
            )
        self._digests[key] = digest
        self._save()
        return ""

    def _announced(self, request: AdvertiseKeys) -> ModelJudgement:
        """Secure aggregation announces the digest before the model comes: it must be the one that was accepted."""
        if request.scores:  # the digest is of the whole question; `Evaluate` carries the model, and it is checked then
            return ModelJudgement()
        known = self._digests.get(self._name(request.round - 1, "train"))
        if known is not None and request.model and known != request.model:
            reason = f"it announces another model for round {request.round - 1} than the one that was sent before"
            return ModelJudgement(reason, {"model": request.model})
        return ModelJudgement("", {"model": request.model})

    def _judge_start(self, request: Personalise, limits: Limits, figures: dict[str, Any]) -> ModelJudgement:
        """A personal model starts from the shared model of some round, or close to it (a mixture with other silos).

        There is one start for each name and stretch of training: many would be many models to ask about.
        """
        key, digest = f"{request.label} {request.leg}", model_digest(request.start)
        if (known := self._digests.get(key)) is not None:
            return ModelJudgement("" if known == digest else "it has another start of the personal model", figures)
        start = self._start()
        problem = _unknown_tensors(request.start.layout, start.layout)
        if not problem and digest not in {*self._digests.values()}:
            part, drift = largest_distance(request.start, start, self._part_of)
            figures |= {"drift": round(drift, 4), "drift_part": part}
            if not drift <= limits.max_model_drift:
                problem = f"the start of the personal model lies {drift:.3g} times its norm from the approved start"
        if not problem:
            self._digests[key] = digest
            self._save()
        return ModelJudgement(problem, figures)

    def _name(self, round: int, purpose: str) -> str:
        return f"{round}" if self._one_model else f"{round} {purpose}"

    def _last_model(self, start: Tensors) -> Tensors:
        """The last accepted model; the start before there is one."""
        if self._last is None:
            self._last = start
            if self._last_file.exists() and self._last_file.stat().st_size == 4 * start.layout.size:
                flat = torch.from_file(str(self._last_file), shared=False, size=start.layout.size)
                self._last = Tensors(start.layout, flat.clone())
        return self._last

    def _accept(self, key: str, digest: str, model: Tensors) -> None:
        """Remember a model: its digest for ever, its values until the next one."""
        last = self._last_model(self._start())
        if last is self._start():
            last = self._last = last.copy()
        last.write(model)
        self._digests[key] = digest
        self._file.parent.mkdir(parents=True, exist_ok=True)
        draft = self._last_file.with_suffix(".draft")
        values: Any = last.flat.numpy()
        draft.write_bytes(values)  # not synced: after a power failure the model is measured from the start alone
        draft.replace(self._last_file)
        self._save()

    def _save(self) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        write_file(self._file, json.dumps(self._digests).encode())

    def _read(self) -> dict[str, str]:
        try:
            return {str(key): str(value) for key, value in json.loads(self._file.read_text()).items()}
        except FileNotFoundError:
            return {}


def _unknown_tensors(layout: Layout, known: Layout) -> str:
    """Why a layout is not a part of the start's; empty if it is."""
    shapes = dict(zip(known.names, known.shapes, strict=True))
    for name, shape in zip(layout.names, layout.shapes, strict=True):
        if shapes.get(name) != shape:
            return f"the model has a tensor '{name[:80]}' of shape {list(shape)[:8]}, which the approved start lacks"
    return ""


def part_scales(base: Tensors, part_of: Callable[[str], str]) -> dict[str, float]:
    """Part of the model → what distances of that part are measured against: its norm, at least a small one."""
    squares: dict[str, float] = {}
    counts: dict[str, int] = {}
    for name, values in base.named().items():
        part = part_of(name)
        squares[part] = squares.get(part, 0.0) + float(torch.linalg.vector_norm(values)) ** 2
        counts[part] = counts.get(part, 0) + values.numel()
    return {part: max(sqrt(squares[part]), LEAST_DEVIATION * sqrt(counts[part])) for part in squares}


def largest_distance(
    model: Tensors, base: Tensors, part_of: Callable[[str], str], scales: dict[str, float] | None = None
) -> tuple[str, float]:
    """The part of the model that lies furthest from ``base``, and how far, relative to the part's norm there.

    ``scales``: those of ``base``, if they are known. Where the model has some tensors only, the others count as equal.
    """
    scales = part_scales(base, part_of) if scales is None else scales
    squares: dict[str, float] = {}
    other = base.named()
    for name, values in model.named().items():
        part = part_of(name)
        squares[part] = squares.get(part, 0.0) + float(torch.dist(values, other[name])) ** 2
    distances = {part: sqrt(moved) / scales[part] for part, moved in squares.items()}
    return max(distances.items(), key=lambda item: item[1], default=("", 0.0))
