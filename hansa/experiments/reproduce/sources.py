"""The source files that a run imported: their digests, and which of them have changed since.

A result is stale if a file changed that its run imported. Comments and docstrings do not count, since they cannot
change a figure. Files of the command line, the reports and the experiments do not count either: what an experiment
asks of a run is in the run's settings, which have a digest of their own.
"""

import ast
import io
import json
import subprocess
import sys
import tokenize
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from hashlib import sha256
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2]  # the folder hansa/
NOT_PART = ("cli", "experiments", "report", "preview", "callbacks", "templates")
SHORT = 12  # hexadecimal digits of a digest
FOLDER = "sources"  # below the folder of cells: one file for each set of source files


def imported() -> dict[str, str]:
    """The source files of Hansa that this process has imported so far, and the digest of each.

    Paths are relative to the folder that holds the package.
    """
    found = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file is None or name.partition(".")[0] != PACKAGE.name or Path(file).suffix != ".py":
            continue
        path = Path(file).resolve()
        if path.is_relative_to(PACKAGE) and path.relative_to(PACKAGE).parts[0] not in NOT_PART:
            found[path.relative_to(PACKAGE.parent).as_posix()] = digest_of(path)
    return dict(sorted(found.items()))


def snapshot() -> dict[str, str]:
    """All source files of Hansa that can count, whether imported or not, and the digest of each as it is now."""
    files = (file for file in sorted(PACKAGE.rglob("*.py")) if file.relative_to(PACKAGE).parts[0] not in NOT_PART)
    return {file.relative_to(PACKAGE.parent).as_posix(): digest_of(file) for file in files}


@cache
def loaded() -> dict[str, str]:
    """The `snapshot` of the first call in this process, whose modules do not change when their files do."""
    return snapshot()


def digest_of(file: Path) -> str:
    """The beginning of a file's SHA-256, for Python files of their `code`; empty if there is no such file."""
    if not file.is_file():
        return ""
    found = file.stat()
    return _digest(file, found.st_mtime_ns, found.st_size)


@lru_cache(maxsize=10_000)
def _digest(file: Path, modified: int, size: int) -> str:
    """The digest of a file; a file of another time or size is another entry of the cache."""
    content = code(file.read_text(encoding="utf-8")).encode() if file.suffix == ".py" else file.read_bytes()
    return sha256(content).hexdigest()[:SHORT]


def code(source: str) -> str:
    """Python source without comments, docstrings and blank lines: two files with the same code compute the same."""
    lines = source.splitlines()
    for first, last in sorted(_left_out(source), reverse=True):  # from the end, so that earlier places stay valid
        head, tail = lines[first[0] - 1].encode()[: first[1]], lines[last[0] - 1].encode()[last[1] :]
        lines[first[0] - 1 : last[0]] = [(head + tail).decode()]
    return "\n".join(line.rstrip() for line in lines if line.strip())


def _left_out(source: str) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Where comments and docstrings begin and end: line, counted from 1, and column in bytes."""
    for token in tokenize.tokenize(io.BytesIO(source.encode()).readline):
        if token.type == tokenize.COMMENT:
            before = len(token.line[: token.start[1]].encode())
            yield (token.start[0], before), (token.end[0], before + len(token.string.encode()))
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if ast.get_docstring(node, clean=False) is not None:
            text = node.body[0]
            assert text.end_lineno is not None
            assert text.end_col_offset is not None
            yield (text.lineno, text.col_offset), (text.end_lineno, text.end_col_offset)


def keep(files: Mapping[str, str], folder: Path) -> str:
    """Write a set of source files below a folder of cells, once; return the name under which it is kept."""
    text = json.dumps(files, indent=0) + "\n"
    name = sha256(text.encode()).hexdigest()[:SHORT]
    file = folder / FOLDER / f"{name}.json"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return name


def changed(name: str, folder: Path, root: Path | None = None) -> list[str]:
    """The files of a kept set that differ today, or are gone; ``root``: the folder that holds the package."""
    return differing(json.loads((folder / FOLDER / f"{name}.json").read_text(encoding="utf-8")), root)


def differing(files: Mapping[str, str], root: Path | None = None) -> list[str]:
    """The files whose digest is another one today; ``root``: the folder that holds the package."""
    return [file for file, digest in files.items() if digest_of((root or PACKAGE.parent) / file) != digest]


@cache
def commit() -> str:
    """The `head` of the first call in this process."""
    return head()


def head() -> str:
    """The commit of the source files, with ``+`` if files of the package have changed since; else ``unknown``."""
    git = ["git", "-C", str(PACKAGE.parent)]
    try:
        head = subprocess.run([*git, "rev-parse", "--short=7", "HEAD"], capture_output=True, text=True, check=True)
        dirty = subprocess.run([*git, "status", "--porcelain", "--", PACKAGE.name], capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head.stdout.strip() + ("+" if dirty.stdout.strip() else "")
