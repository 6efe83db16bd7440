"""The import as a person sees it: a bar while it runs, tables of what was kept and what was dropped at the end."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from hansa.cli.console import errors, output
from hansa.report.text import table


@contextmanager
def bar(language: str) -> Iterator[Callable[[int, int], None]]:
    """Bytes done of all, speed and time left, on standard error; from the first bytes on, not before."""
    parts = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    progress = Progress(TextColumn(f"importing {language}"), *parts, console=errors, transient=True)
    task = progress.add_task("", total=None)

    def update(done: int, total: int) -> None:
        """Show that ``done`` of ``total`` bytes are imported; the first call makes the bar visible."""
        progress.start()
        progress.update(task, completed=done, total=total)

    try:
        yield update
    finally:
        if progress.live.is_started:
            progress.stop()


def show(report: dict[str, Any], folder: str) -> None:
    """Print what an import kept and left out."""
    splits = report["splits"]
    rows = [[name, f"{part['documents']:,}", f"{part['sentences']:,}"] for name, part in splits.items()]
    for total in ("kept", "read"):
        rows.append([total, f"{report['documents'][total]:,}", f"{report['sentences'][total]:,}"])
    output.print(table([report["language"], "documents", "sentences"], rows, f"Imported into {folder}"))
    if report["dropped"]:
        output.print("\n[bold]Left out or mended[/]")
    for what, reasons in report["dropped"].items():
        for one in reasons:
            line = f"{one['count']:>9,}  {what}: {one['reason']}; first {one['places'][0]}"
            output.print(line, highlight=False, markup=False)
    output.print()
    if report["personal_details_replaced"]:
        output.print(f"{report['personal_details_replaced']:,} personal details replaced", highlight=False)
    for note in report["notes"]:
        output.print(f"note: {note}", highlight=False, markup=False)
    sizes = f"{report['bytes_in'] / 1e6:,.1f} MB in, {report['bytes_out'] / 1e6:,.1f} MB out"
    speed = f"{report['seconds']:,.1f} s, {report['megabytes_per_second']:,.1f} MB/s"
    output.print(f"{sizes}, {speed}; more places in report.json", highlight=False)
