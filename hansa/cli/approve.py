"""`hansa approve`: a silo's administrator approves a run, after reading one page about it."""

import sys
from dataclasses import replace
from pathlib import Path
from textwrap import fill
from typing import Annotated, Any

import typer

from hansa.cli.console import Format, FormatOption, finish, output
from hansa.cli.kit import require_extra
from hansa.core.errors import UserError

MIN_DIGITS = 4  # of a digest: an empty text would withdraw every approval
MAX_WIDTH = 110  # of the page, in characters: longer lines are hard to read


def approve(
    federation: Annotated[Path | None, typer.Argument(metavar="[FED.yaml]", help="the federation file")] = None,
    kit: Annotated[Path, typer.Option("--kit", help="the startup kit of this silo")] = Path("kit"),
    home: Annotated[Path | None, typer.Option(help="the silo's own files; default KIT/home")] = None,
    policy: Annotated[Path | None, typer.Option(help="the silo's policy; default KIT/policy.yaml")] = None,
    model: Annotated[Path | None, typer.Option(help="this silo's copy of the model folder that the file names")] = None,
    plugins: Annotated[list[Path] | None, typer.Option("--plugins", help="a plug-in that the silo runs")] = None,
    survey: Annotated[bool, typer.Option("--survey", help="approve a survey ('hansa survey'), not training")] = False,
    runs: Annotated[int, typer.Option(min=1, help="how many runs of these settings are approved")] = 1,
    pending: Annotated[bool, typer.Option("--pending", help="the newest run that was refused")] = False,
    accept_start: Annotated[
        bool, typer.Option("--accept-start", help="with --pending: accept the received starting model as it is")
    ] = False,
    withdraw: Annotated[str | None, typer.Option(metavar="DIGEST", help="withdraw approvals by digest")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="do not ask")] = False,
    format: FormatOption = Format.text,
) -> None:
    """Show what a run would do with this silo's data, and approve it. The silo refuses every other run."""
    require_extra()
    from hansa.deploy.approval import Approvals
    from hansa.deploy.kit import Kit

    own = Kit(kit)
    approvals = Approvals(kit, home or kit / "home")
    if withdraw is not None:
        if len(withdraw) < MIN_DIGITS:
            raise UserError(f"--withdraw '{withdraw}' is too short: give at least {MIN_DIGITS} digits of the digest")
        count = approvals.withdraw(withdraw)
        if not count:
            raise UserError(f"no approval has a digest that begins with '{withdraw}'")
        finish(format, {"withdrawn": count}, lambda: output.print(f"{count} withdrawn", highlight=False))
        return
    wanted, settings = _wanted(federation, pending, approvals, plugins or [], model, runs, survey)
    if not accept_start:
        wanted = replace(wanted, start={})
    elif not wanted.start:
        raise UserError("--accept-start needs a refused run whose starting model was received: give --pending")
    if len(used := approvals.used(wanted.digest)) >= runs:
        raise UserError(
            f"{len(used)} run{'s' * (len(used) > 1)} of these settings began under an approval, and --runs counts all "
            f"runs: give --runs {len(used) + 1} to approve another one"
        )
    from hansa.deploy.approval_page import approval_page

    before = next((one for one in reversed(approvals.all()) if one.federation == wanted.federation), None)
    page = approval_page(settings, wanted, own, policy, before)
    if format is Format.text:
        for section in page:
            output.print(f"[bold]{section.heading}[/]", highlight=False)
            for line in section.lines:
                output.print(_indented(line), markup=False, highlight=False)
    if not yes and not sys.stdin.isatty():
        raise UserError(
            "nothing was approved: without a terminal the command cannot ask; read the page, then give --yes"
        )
    if not yes and not typer.confirm("Approve?", default=False):
        raise UserError("nothing was approved; the silo refuses this run")
    file = approvals.add(wanted)
    sections = {section.heading: list(section.lines) for section in page}
    result = {"approved": wanted.digest, "runs": wanted.runs, "file": str(file), "page": sections}
    finish(format, result, lambda: output.print(f"Approved: {wanted.digest[:16]}… ({file})", highlight=False))


def _indented(line: str) -> str:
    """A line of the page, folded at the width of the terminal."""
    width = max(40, min(output.width, MAX_WIDTH))
    return fill(line, width, initial_indent="  · ", subsequent_indent="    ", break_on_hyphens=False)


def _wanted(
    file: Path | None,
    pending: bool,
    approvals: Any,
    plugins: list[Path],
    model: Path | None,
    runs: int,
    survey: bool,
) -> tuple[Any, Any]:
    """The approval to give and the settings it is for, from the file or from the newest refused run."""
    from hansa.config.federation import Federation
    from hansa.config.file import read
    from hansa.config.plugins import load_plugins
    from hansa.deploy.approval import approval_of

    if pending == (file is not None):
        raise UserError("give the federation file, or --pending for the newest run that was refused")
    load_plugins(tuple(str(plugin.resolve()) for plugin in plugins))
    if file is not None:
        settings = read(file).as_survey() if survey else read(file)
        if settings.plugins and not plugins:
            names = ", ".join(Path(name).name for name in settings.plugins)
            raise UserError(f"{file} names plug-ins ({names}): give this silo's own copies with --plugins")
        if model is None and settings.model.path is not None and Path(settings.model.path).is_dir():
            model = Path(settings.model.path)
        return approval_of(settings, plugins, model, runs), settings
    waiting = approvals.pending()
    if not waiting:
        raise UserError("no run is waiting for an approval")
    settings = Federation.model_validate(waiting[-1].settings)
    return replace(approval_of(settings, plugins, model, runs), start=waiting[-1].start), settings
