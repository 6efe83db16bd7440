"""`hansa survey`: federated statistics before training."""

import json
import logging
from pathlib import Path
from typing import Annotated

import typer

from hansa.cli.console import Format, FormatOption, errors, finish, output
from hansa.cli.deploy import NatsOption
from hansa.cli.kit import require_extra
from hansa.cli.options import FederationFile, SetOption

log = logging.getLogger("hansa")


def survey(
    federation: FederationFile,
    set: SetOption = None,
    kit: Annotated[
        Path | None, typer.Option(help="the coordinator's kit: survey the silos of other organisations")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="folder for survey.json and survey.html; with --kit, default runs/NAME-survey")
    ] = None,
    nats: NatsOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="the same as --format json")] = False,
    format: FormatOption = Format.text,
) -> None:
    """Count before training: rows, lengths, languages, labels, overlap of vocabularies, near-duplicates across silos.

    Every figure stands for at least `survey.floor` rows. Trains nothing.
    """
    from hansa.config.file import read
    from hansa.report.survey import print_survey, write_page
    from hansa.runs.survey import simulate_survey

    settings = read(federation, set)
    if kit is not None:
        require_extra()
        from hansa.deploy.kit import Kit
        from hansa.deploy.survey import survey_members

        out = out or Path("runs") / f"{settings.name}-survey"
        found = survey_members(settings, Kit(kit), out, nats, lambda text: errors.print(text, markup=False))
    else:
        found = simulate_survey(settings)
    if out is not None:
        write_page(found, out / "survey.html")
        (out / "survey.json").write_text(json.dumps(found.as_dict(), ensure_ascii=False, indent=1), encoding="utf-8")
    finish(Format.json if as_json else format, found.as_dict(), lambda: print_survey(output, found))
