"""`hansa plan`: how long a round takes with many silos, and what limits it."""

import re
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer

from hansa.cli.console import Format, FormatOption, finish, output
from hansa.cli.kit import require_extra
from hansa.cli.options import FederationFile, SetOption
from hansa.core.errors import UserError
from hansa.report.text import table

UNITS = {"k": 1e3, "m": 1e6, "g": 1e9}
RateOption = Annotated[str, typer.Option(metavar="RATE", help="such as 100Mbit or 10Gbit, in each direction")]


def plan(
    federation: FederationFile,
    silos: Annotated[
        list[int] | None, typer.Option(min=1, help="number of silos; give it several times to compare")
    ] = None,
    regions: Annotated[
        list[str] | None,
        typer.Option(
            metavar="N[/N…]",
            help="number of regions, or of those of each level from the root down, such as 4/16; 0, the default: none; "
            "give it several times to compare",
        ),
    ] = None,
    uplink: RateOption = "100Mbit",
    coordinator_link: RateOption = "1Gbit",
    speed: Annotated[float, typer.Option(min=1e-6, help="how fast a silo trains, against this machine")] = 1.0,
    cores: Annotated[int, typer.Option(min=1, help="processors of the coordinator, and of each region")] = 4,
    samples: Annotated[
        int | None, typer.Option(min=1, help="samples of a silo in a round; default: as the file says")
    ] = None,
    gpu_hours: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            help="accelerator hours that a silo trains in a round, in place of what this machine measured; --samples "
            "and --speed then have no effect",
        ),
    ] = None,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="measure this machine and the file's training first, and keep it")
    ] = False,
    constants: Annotated[
        Path | None, typer.Option(help="use what another machine measured: a file of 'hansa plan --format json'")
    ] = None,
    set: SetOption = None,
    format: FormatOption = Format.text,
) -> None:
    """Predict time, bytes, memory, disk and broker load of a round from constants measured on this machine."""
    require_extra()
    from hansa.config.file import read
    from hansa.config.nodes import walk
    from hansa.config.plugins import load_plugins
    from hansa.planning import calibration
    from hansa.planning.scale import Links, plan_round, thresholds

    settings = read(federation, set)
    load_plugins(settings.plugins)
    if constants is not None:
        found = calibration.read(constants)
    else:
        found = calibration.calibrate(settings) if calibrate else calibration.load(settings)
    links = Links(rate("--coordinator-link", coordinator_link), rate("--uplink", uplink), speed, cores)
    inner = [node for _, node in walk(settings.silos) if node.silos]
    work = replace(found.work(samples), regions_train=any(node.sources for node in inner))
    if gpu_hours is not None:
        links, work = replace(links, speed=1.0), replace(work, training=3600 * gpu_hours)
    counts = silos or [sum(not node.silos for _, node in walk(settings.silos))]
    ways = [levels(text) for text in regions or ["0"]]
    plans = [plan_round(found.constants, work, links, n, r) for n in counts for r in ways if not r or r[-1] < n]
    if not plans:
        raise UserError("--regions has at least as many regions as there are silos: give fewer")
    pays = thresholds(found.constants, work, links, calibration.INT8_RATIO)
    result = {
        "calibration": asdict(found),
        "rounds": [asdict(one) | {"seconds": one.seconds, "limit": one.limit} for one in plans],
        "pays_from": asdict(pays),
    }

    def show() -> None:
        """Print the predicted figures of each plan, and from how many silos on an alternative is faster."""
        each = f"{work.model / 1e6:,.1f} MB down and {work.update / 1e6:,.1f} MB up for each silo"
        shown = f"{settings.name}: a round, {each}"
        rows = [_row(one) for one in plans]
        heads = ["silos", "regions", "time", "limit", "its time", "down", "up", "memory", "disk", "broker", "training"]
        output.print(table(heads, rows, shown))
        for name, silos_needed in (
            ("Regions (as many as the square root of the silos) shorten", pays.regions),
            ("The upload rule int8 shortens", pays.upload),
            ("DiLoCo with ten times the local steps shortens", pays.diloco),
        ):
            what = "a round" if "DiLoCo" not in name else "a local step"
            where = _where(silos_needed)
            output.print(f"{name} {what} by a tenth or more {where}.", highlight=False)

    finish(format, result, show)


def _where(pays: Any) -> str:
    if pays is None:
        return "for no number of silos"
    return f"from {pays.first:,} silos on" if pays.last is None else f"from {pays.first:,} to {pays.last:,} silos"


def _row(one: Any) -> list[str]:
    return [
        f"{one.silos:,}",
        "/".join(f"{count:,}" for count in one.regions) or "–",
        _time(one.seconds),
        one.limit,
        f"{one.parts[one.limit] / one.seconds:.0%}",
        _bytes(one.down),
        _bytes(one.up),
        _bytes(one.memory),
        _bytes(one.disk),
        f"{one.messages:,.0f}/s",
        f"{one.compute / 3600:,.2f} h",
    ]


def _time(seconds: float) -> str:
    if seconds >= 3600:
        return f"{seconds / 3600:,.1f} h"
    return f"{seconds / 60:,.1f} min" if seconds >= 60 else f"{seconds:,.2f} s"


def _bytes(size: float) -> str:
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.1f} MB"


def levels(text: str) -> tuple[int, ...]:
    """The numbers of regions of a text such as 4/16, from the root down; raises `UserError` if it is not one."""
    parts = text.replace(" ", "").split("/")
    found = tuple(int(part) for part in parts if part.isdecimal())
    if found == (0,):
        return ()
    if len(found) != len(parts) or 0 in found or any(a >= b for a, b in pairwise(found)):
        raise UserError(
            f"--regions {text!r} is not a number of regions: write 10, or 4/16 for 4 regions with 16 below them"
        )
    return found


def rate(option: str, text: str) -> float:
    """Bytes per second of a rate such as 100Mbit; raises `UserError` if it is not one."""
    match = re.fullmatch(r"([0-9.]+)\s*([kKmMgG])bit(?:/s)?", text.strip())
    try:
        found = float(match[1]) * UNITS[match[2].lower()] / 8 if match else 0.0
    except ValueError:
        found = 0.0
    if found <= 0.0:
        raise UserError(f"{option} {text!r} is not a rate: write it as 100Mbit or 1Gbit")
    return found
