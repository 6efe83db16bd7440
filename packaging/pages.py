"""`make pages`: write the pages of the documentation that are generated.

    docs/federation-file.md     every setting, from the settings' own definitions (hansa.config.reference)
    docs/command-line.md        every command and option, from the typer application
    docs/python.md              every public name, in the order below; mkdocstrings inserts their docstrings
    docs/results.md             only the status of its sections, and the summary of their claims; no run is needed
    docs/tutorials/NAME.md      every notebook docs/tutorials/NAME.ipynb, with the outputs that are stored in it

    python packaging/pages.py             write them
    python packaging/pages.py --check     write nothing; exit code 1 if a page is not what would be written
    python packaging/pages.py --execute   first execute the notebooks, and store their outputs in them

docs/benchmarks.md is written by `make bench`, since it needs measurements.
"""

import argparse
import inspect
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import typer
from nbclient import NotebookClient
from typer.cli import get_docs_for_click

import hansa
from hansa.cli.main import app
from hansa.config import reference
from hansa.experiments.reproduce import page

ROOT = Path(__file__).resolve().parent.parent
PYTHON = """\
# Python

Written by `make pages` from the code; do not edit. These names are public; what is not on this page may change. The
tutorial [A first federation](tutorials/first-federation.md) shows them at work.

"""
# The public names by subject; a name that is missing here is an error.
SUBJECTS = {
    "Describe and run": "Federation Check Survey survey run rounds Rounds compare load",
    "Results": "Result Comparison RoundRecord",
    "Methods": "Method",
    "Errors": "HansaError UserError ConfigError DataError RunFailed",
}
METHODS = """\
`hansa.methods` has a function for every method of a federation file. Its arguments are the method's settings, and it
returns a `hansa.Method`, a frozen dataclass of slots ([Concepts](concepts.md#methods-are-values-with-slots)). Raises
`hansa.ConfigError` for a setting that is unknown or out of range.

| function | settings |
|---|---|
"""
CALLBACKS = """\
## Callbacks

A callback is an object with any of the methods of `hansa.callbacks.CallbackMethods`. [Track runs](trackers.md) shows
how callbacks are used.

"""
COMMANDS = """\
# Every command

Written by `make pages` from the code; do not edit. `hansa COMMAND --help` prints the same. Every command exits with 0
(done), 1 (the run failed) or 2 (the input is wrong, explained in one sentence). The settings of federation files are in
[Settings](federation-file.md).

"""
NOTEBOOK = """\
!!! note

    This page is the notebook [{name}.ipynb]({name}.ipynb) with its stored outputs. The tests execute it from top to
    bottom and compare the outputs.

"""
SECONDS = 300  # for a cell, on a machine with other work


def main() -> None:
    """Write, or check, the generated pages; exit code 1 with one sentence if a page is out of date."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page is out of date")
    parser.add_argument("--execute", nargs="*", metavar="NAME", help="execute notebooks first: these, or all of them")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help="the folder of the pages")
    options = parser.parse_args()
    notebooks = sorted((options.docs / "tutorials").glob("*.ipynb"))
    for file in notebooks if options.execute is not None else ():
        if not options.execute or file.stem in options.execute:
            nbformat.write(executed(file), file)
    written_by = {"federation-file": reference.page, "command-line": command_line, "python": python}
    pages = {options.docs / f"{name}.md": write() for name, write in written_by.items()}
    pages |= {file.with_suffix(".md"): "\n\n".join(filter(None, tutorial(file))) + "\n" for file in notebooks}
    pages |= results(options.docs / "results.md")
    if options.check:
        old = [file for file, text in pages.items() if not file.is_file() or file.read_text(encoding="utf-8") != text]
        if old:
            sys.exit(f"failed: {old[0]} is not what the code says; run 'make pages', and commit it")
    else:
        for file, text in pages.items():
            file.write_text(text, encoding="utf-8")


def results(file: Path) -> dict[Path, str]:
    """The results page with the status that its sections have now; nothing if there is no such page."""
    if not file.is_file():
        return {}
    text = file.read_text(encoding="utf-8")
    return {file: page.refreshed(text, page.sections(file, text))}


def command_line() -> str:
    """The page of all commands."""
    command: Any = typer.main.get_command(app)
    text = get_docs_for_click(obj=command, ctx=typer.Context(command), name="hansa")
    text = text.partition("**Commands**:")[2].partition("\n## ")[2]
    text = re.sub(r"^(#+) `(hansa .*)`$", r"\1 \2", "## " + text, flags=re.M)
    return COMMANDS + re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def python() -> str:
    """The page of all public names of `hansa`, `hansa.methods` and `hansa.callbacks`."""
    named = {name for names in SUBJECTS.values() for name in names.split()}
    public = {name for name in hansa.__all__ if name not in ("__version__", "callbacks", "methods")}
    if named != public:
        sys.exit(f"failed: SUBJECTS in {Path(__file__).name} and hansa.__all__ differ in {sorted(named ^ public)}")
    parts = [PYTHON]
    for title, names in SUBJECTS.items():
        parts += [f"## {title}\n\n", *(described(hansa, name) for name in names.split())]
        if title == "Methods":
            parts += [METHODS, *(method_row(name) for name in hansa.methods.__all__), "\n"]
    others = [name for name in hansa.callbacks.__all__ if name not in public]
    return "".join([*parts, CALLBACKS, *(described(hansa.callbacks, name) for name in others)])


def described(module: Any, name: str) -> str:
    """Where mkdocstrings inserts the signature and the docstring of a public name."""
    shown, found = f"{module.__name__}.{name}", getattr(module, name)
    found = found if hasattr(found, "__qualname__") else type(found)
    options = f"      heading: {shown}\n      toc_label: {shown}\n"
    return f"::: {found.__module__}.{found.__qualname__}\n    options:\n{options}\n"


def method_row(name: str) -> str:
    """A function of `hansa.methods` with its settings; a link leads to the page of settings."""
    function = getattr(hansa.methods, name)
    given = inspect.signature(function).parameters.values()
    shown = ", ".join(
        f"`{one.name}={one.default!r}`" if one.default is not one.empty else f"`{one.name}`" for one in given
    )
    return f"| `hansa.methods.{name}` | {shown} |\n"


def executed(file: Path) -> Any:
    """The notebook with the outputs of an execution from top to bottom, in an empty folder."""
    notebook = nbformat.read(file, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(
            notebook,
            timeout=SECONDS,
            kernel_name="python3",
            resources={"metadata": {"path": folder}},
            record_timing=False,
        ).execute()
    for cell in notebook.cells:
        if cell.cell_type == "code":  # standard error has progress, and warnings with paths of this machine
            cell.outputs = [one for one in cell.outputs if one.get("name") != "stderr"]
    notebook.metadata = {"kernelspec": notebook.metadata["kernelspec"]}
    return notebook


def tutorial(file: Path) -> Iterator[str]:
    """A notebook as Markdown, part by part: its texts, its code, and the stored outputs."""
    title, *cells = nbformat.read(file, as_version=4).cells
    heading, _, rest = title.source.partition("\n")
    yield from (heading, NOTEBOOK.format(name=file.stem).strip(), rest.strip())
    for cell in cells:
        if cell.cell_type == "markdown":
            yield cell.source.strip()
            continue
        yield f"```python\n{cell.source.strip()}\n```"
        text = "".join(written(output) for output in cell.outputs).rstrip()
        if text:
            yield f"```text\n{text}\n```"


def written(output: Any) -> str:
    """The text of an output of a cell; progress, which goes to standard error, is left out."""
    if output.output_type == "stream":
        return str(output.text) if output.name == "stdout" else ""
    return str(output.get("data", {}).get("text/plain", "")).rstrip() + "\n"


if __name__ == "__main__":
    main()
