"""Policies and methods that the tests of this folder share."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, cast

import torch
import yaml

from hansa.config.federation import Federation
from hansa.core.learner import Work
from hansa.core.method import METHODS, Method, Scope
from hansa.core.settings import Section
from hansa.core.tensors import Layout, Tensors
from hansa.methods.fedavg import PlainObjective, ShareEverything, fedavg
from hansa.privacy.policy.rules import Kind, Policy, Purpose, ReleaseItem

ALL = {"tensors": "any", "samples": True, "metrics": True, "words": 2, "labels": True, "personal": True}
HERE = Purpose("small", "fedavg", 2, None)


def policy(folder: Path, text: object = None, name: str = "policy.yaml", **rule: object) -> Policy:
    """Write a policy file, either ``text`` or one rule 'training' for federation 'small', and read it."""
    given = {"federations": ["small"], "methods": "any", "release": ALL} | rule
    (folder / name).write_text(text if isinstance(text, str) else yaml.safe_dump({"rules": {"training": given}}))
    return Policy.read(folder / name)


def allowed(found: Policy, kind: str = "metrics", purpose: Purpose = HERE) -> bool:
    """Whether a policy allows the release of a kind."""
    return found.judge(ReleaseItem(cast(Kind, kind)), purpose).allowed


def with_policy(settings: Federation, file: Path, name: str = "north") -> Federation:
    """The federation with a policy for one silo."""
    node = settings.silos[name].model_copy(update={"policy": str(file)})
    return settings.model_copy(update={"silos": settings.silos | {name: node}})


# ── a method from outside the package, with a state that silos and server share ───────────────────────────────────


@dataclass(frozen=True)
class Counting(PlainObjective):
    """Sends the number of steps as its contribution to the shared state."""

    def finish(self, work: Work) -> None:
        assert work.shared_state is not None
        work.contribution = Tensors(work.shared_state.layout, torch.full((work.shared_state.layout.size,), work.steps))


@dataclass(frozen=True)
class OutsideState:
    """A shared state with one tensor that the model does not have, and with the model's tensors if ``like_model``."""

    like_model: bool
    name: ClassVar[str] = "steps"

    def begin(self, layout: Layout) -> Tensors:
        return Tensors.zeros(layout if self.like_model else Layout((self.name,), ((1,),)))

    def merge(self, value: Tensors, mean: Tensors, participation: float) -> Tensors:
        return mean


@contextmanager
def outside_method(like_model: bool = True, scope: Scope = ShareEverything()) -> Iterator[str]:  # noqa: B008
    """Register a method 'outside' with a shared state; yield its name."""
    state = OutsideState(like_model)

    class Outside(Section):
        def build(self) -> Method:
            return replace(fedavg(), name="outside", scope=scope, objective=Counting(), shared_state=state)

    METHODS.entries["outside"] = Outside
    try:
        yield "outside"
    finally:
        del METHODS.entries["outside"]
