"""`make pages`: write the pages of the documentation that are generated.

    docs/federation-file.md     every setting, from the settings' own definitions (hansa.config.reference)
    docs/command-line.md        every command and option, from the typer application
    docs/tutorials/NAME.md      every notebook docs/tutorials/NAME.ipynb, with the outputs that are stored in it

    python packaging/pages.py             write them
    python packaging/pages.py --check     write nothing; exit code 1 if a page is not what would be written
    python packaging/pages.py --execute   first execute the notebooks, and store their outputs in them

docs/benchmarks.md is written by `make bench`, since it needs measurements.
"""

import argparse
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

from hansa.cli.main import app
from hansa.config import reference

ROOT = Path(__file__).resolve().parent.parent
COMMANDS = """\
# Every command

Written by `make pages` from the code; do not edit. `hansa COMMAND --help` prints the same. Every command exits with 0
(done), 1 (the run failed) or 2 (the input is wrong, explained in one sentence). The settings of federation files are in
[Settings](federation-file.md).

"""
NOTEBOOK = """\
!!! note

    This page is the notebook [{name}.ipynb]({name}.ipynb) with its stored outputs. The tests execute it from top to bottom
    and compare the outputs.

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
    pages = {options.docs / "federation-file.md": reference.page(), options.docs / "command-line.md": command_line()}
    pages |= {file.with_suffix(".md"): "\n\n".join(filter(None, tutorial(file))) + "\n" for file in notebooks}
    if options.check:
        old = [file for file, text in pages.items() if not file.is_file() or file.read_text(encoding="utf-8") != text]
        if old:
            sys.exit(f"failed: {old[0]} is not what the code says; run 'make pages', and commit it")
    else:
        for file, text in pages.items():
            file.write_text(text, encoding="utf-8")


def command_line() -> str:
    """The page of all commands."""
    command: Any = typer.main.get_command(app)
    text = get_docs_for_click(obj=command, ctx=typer.Context(command), name="hansa")
    text = text.partition("**Commands**:")[2].partition("\n## ")[2]
    text = re.sub(r"^(#+) `(hansa .*)`$", r"\1 \2", "## " + text, flags=re.M)
    return COMMANDS + re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def executed(file: Path) -> Any:
    """The notebook with the outputs of an execution from top to bottom, in an empty folder."""
    notebook = nbformat.read(file, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(
            notebook, timeout=SECONDS, kernel_name="python3", resources={"metadata": {"path": folder}}, record_timing=False
        ).execute()
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
