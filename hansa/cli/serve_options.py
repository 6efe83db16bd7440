"""Which options of `hansa serve` belong to which kind of kit: one that would have no effect is refused."""

from pathlib import Path
from typing import TYPE_CHECKING

from hansa.core.errors import UserError

if TYPE_CHECKING:
    from hansa.deploy.alerts import Webhook

PAGES = "the dashboard shows the coordinator's runs; 'hansa status RUN' shows a region, with its --out"
FROM_FILE = "the coordinator takes it from the federation file"


def refuse_for_region(
    kit: Path, *, federation: bool, queue: bool, at_once: bool, keep_days: bool, accounts: bool, oidc: bool
) -> None:
    """Raise `UserError` if `hansa serve` was given, with the kit of a region, what only a coordinator can use."""
    for option, given, why in (
        ("the federation file", federation, "a region gets the settings of every run from its parent"),
        ("--queue", queue, "only the coordinator has a queue of runs"),
        ("--at-once", at_once, "it belongs to the coordinator's --queue, and a region works on one run at a time"),
        ("--keep-days", keep_days, "it belongs to the coordinator's --queue"),
        ("--accounts", accounts, PAGES),
        ("--oidc", oidc, PAGES),
    ):
        if given:
            raise UserError(f"{kit} is the kit of a region; leave {option} out: {why}")


def refuse_for_coordinator(kit: Path, *, data: bool, policy: bool, model: bool, plugins: bool) -> None:
    """Raise `UserError` if `hansa serve` was given, with the kit of a coordinator, what only a region can use."""
    for option, given, why in (
        ("--data", data, FROM_FILE),
        ("--policy", policy, "a coordinator releases nothing to a parent"),
        ("--model", model, FROM_FILE),
        ("--plugins", plugins, FROM_FILE),
    ):
        if given:
            raise UserError(f"{kit} is the kit of a coordinator; leave {option} out: {why}")


def refuse_without_queue(*, at_once: bool, keep_days: bool) -> None:
    """Raise `UserError` if `hansa serve FED.yaml` was given an option of ``--queue``."""
    if at_once:
        raise UserError("--at-once is for a coordinator with --queue: a federation file is one run; leave it out")
    if keep_days:
        raise UserError("--keep-days is for a coordinator with --queue; for single runs, use 'hansa prune RUNS'")


def webhook_of(url: str | None) -> "Webhook | None":
    """The webhook of --webhook, if it was given; raises `UserError` if it cannot be used."""
    from hansa.deploy.alerts import Webhook

    return Webhook.parse(url) if url is not None else None
