"""Switches: each function takes one defence out of the process in which it is called, before its command runs."""

from hansa.deploy.policy_enforcer import PolicyEnforcer
from hansa.privacy.policy.guard import Guard, RunContext
from hansa.privacy.policy.model_check import ModelHistory, ModelJudgement
from hansa.privacy.policy.request_limits import RequestLimits


def no_approvals() -> None:
    """Work on every run."""
    PolicyEnforcer.admit = (  # type: ignore[method-assign]
        lambda self, federation, folder, plugins, model="": RunContext(folder.name)
    )
    PolicyEnforcer.approved_model = lambda self, federation, folder, plugins: ""  # type: ignore[method-assign]
    PolicyEnforcer.while_approved = lambda self, answer, *run: answer  # type: ignore[method-assign]


def no_request_limits() -> None:
    """Answer requests that the settings do not imply."""
    RequestLimits.objection = lambda self, request: ""  # type: ignore[method-assign]


def no_model_check() -> None:
    """Work on every model."""
    ModelHistory.judge = lambda self, request, models, limits: ModelJudgement()  # type: ignore[method-assign]


def no_least_samples() -> None:
    """Release updates of any number of samples."""
    Guard._too_few = lambda self, limits, request: ""  # type: ignore[method-assign]
