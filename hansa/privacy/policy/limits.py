"""The numbers of a policy: least samples behind a release, how far a model may move, the privacy budget.

limits:
  min_samples: 20                   # different rows behind every sum of scores: per language, domain and part
  min_update_samples: 32            # different rows behind an update; windows of one text are one row
  min_update_patients: 0            # different patients (privacy.field) behind an update
  max_model_step: 0.5               # how far a received model may lie from the last one, per part of the model
  max_model_drift: 2.0              # and from the approved start
budget: {epsilon: 8, delta: 1e-5}   # of all releases with noise, over all runs together
approve:                            # runs that need no approval by hand; leave it out to approve each one
  tasks: [mlm]
  methods: [fedavg]
  max_rounds: 100
  runs: 1                           # in all
  surveys: false                    # also surveys (`hansa survey`) of these tasks, each counted as a run

The limits hold whatever the rules allow, with these defaults where a policy names none. A policy that lies within
another one has the stricter value of each.
"""

from typing import Literal

from pydantic import Field

from hansa.config.federation import Federation
from hansa.core.settings import Count, Positive, Section


class Limits(Section):
    """Bounds on releases and on the models that a silo works on."""

    min_samples: int = Field(default=20, ge=1, description="Least number of rows behind each sum of scores.")
    min_update_samples: int = Field(
        default=32, ge=1, description="Least number of different rows behind a model update."
    )
    min_update_patients: int = Field(
        default=0, ge=0, description="Least number of different patients behind a model update."
    )
    max_model_step: Positive = Field(
        default=0.5,
        description="Largest distance of a received model from the last accepted one, per part of the model, relative "
        "to the part's norm.",
    )
    max_model_drift: Positive = Field(
        default=2.0, description="Largest such distance of a received model from the approved start."
    )

    def within(self, outer: "Limits") -> "Limits":
        """The stricter of two limits, each by itself."""
        return Limits(
            min_samples=max(self.min_samples, outer.min_samples),
            min_update_samples=max(self.min_update_samples, outer.min_update_samples),
            min_update_patients=max(self.min_update_patients, outer.min_update_patients),
            max_model_step=min(self.max_model_step, outer.max_model_step),
            max_model_drift=min(self.max_model_drift, outer.max_model_drift),
        )


class Budget(Section):
    """The privacy budget of a silo: ε at δ of everything it releases with noise, over all runs."""

    epsilon: Positive = Field(description="Largest ε of all releases together.")
    delta: float = Field(default=1e-5, gt=0.0, lt=1.0, description="The δ at which ε is stated.")


class AutomaticApproval(Section):
    """Which runs are approved without an administrator: those within all of these bounds."""

    tasks: tuple[str, ...] = Field(description="Names of tasks.")
    methods: tuple[str, ...] = Field(description="Names of methods.")
    max_rounds: Count = Field(description="Largest number of rounds of a run.")
    models: Literal["any"] | tuple[str, ...] = Field(
        default=("tiny", "small", "base"),
        description="Presets, or names of model folders; 'any' also lets the coordinator choose the weights.",
    )
    runs: Count = Field(default=1, description="How many runs in all are approved without an administrator.")

    surveys: bool = Field(default=False, description="Approve surveys of these tasks too, each counted as a run.")

    def objection(self, federation: Federation) -> str:
        """Why a run needs an approval by hand; empty if it does not."""
        if federation.kind == "survey" and not self.surveys:
            return "it is a survey, and the policy approves none by itself (approve.surveys)"
        model = federation.model.preset or federation.model.path or ""
        if federation.task.name not in self.tasks:
            return f"its task is '{federation.task.name}', and the policy approves {_listed(self.tasks)}"
        if federation.kind == "survey":
            return ""
        if federation.method.name not in self.methods:
            return f"its method is '{federation.method.name}', and the policy approves {_listed(self.methods)}"
        if federation.rounds > self.max_rounds:
            return f"it has {federation.rounds} rounds, and the policy approves at most {self.max_rounds}"
        if self.models != "any" and model not in self.models:
            return f"its model is '{model}', and the policy approves {_listed(self.models)}"
        return ""


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names) or "none"
