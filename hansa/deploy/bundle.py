"""The initial model, tokenizer and labels of a run as one sequence of bytes: a JSON list of files, then their content.

Only a flat folder is packed. Both ends accept only files that hold weights, vocabularies and settings, and no settings
that name code to load.
"""

import json
import re
from collections.abc import Iterator
from mmap import ACCESS_READ, mmap
from pathlib import Path

from hansa.deploy.network.blob_protocol import InvalidRequest
from hansa.files import atomically

MAX_LINE_BYTES = 1 << 20
SUFFIXES = (".json", ".safetensors", ".txt", ".model", ".spm")  # .model and .spm are SentencePiece's
CODE_KEYS = {"auto_map", "custom_pipelines", "trust_remote_code"}


def pack(folder: Path, file: Path) -> memoryview:
    """Write the bundle of a folder to ``file`` and return it mapped; the same folder gives the same bytes."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.suffix in SUFFIXES)
    draft = file.with_name(f".{file.name}.draft")
    with draft.open("wb") as out:
        out.write(json.dumps([[path.name, path.stat().st_size] for path in files]).encode() + b"\n")
        for path in files:
            with path.open("rb") as stream:
                while chunk := stream.read(1 << 20):
                    out.write(chunk)
    draft.replace(file)
    with file.open("rb") as stream:
        return memoryview(mmap(stream.fileno(), 0, access=ACCESS_READ))


def unpack(bundle: memoryview, folder: Path) -> None:
    """Write the files of a bundle into a new folder; raises `InvalidRequest` if a file is not acceptable."""
    with atomically(folder) as draft:
        for name, content in _files(bundle):
            (draft / name).write_bytes(content)


def _files(bundle: memoryview) -> Iterator[tuple[str, memoryview]]:
    line, newline, _ = bytes(bundle[:MAX_LINE_BYTES]).partition(b"\n")
    at = len(line) + 1
    try:
        listed = json.loads(line) if newline else None
        entries = [(str(name), int(size)) for name, size in listed] if isinstance(listed, list) else None
    except (ValueError, TypeError):
        entries = None
    if entries is None or any(size < 0 for _, size in entries) or at + sum(s for _, s in entries) != len(bundle):
        raise InvalidRequest("the initial model is not a bundle of files")
    for name, size in entries:
        if not re.fullmatch(r"\w[\w.-]{0,99}", name, re.ASCII) or ".." in name or not name.endswith(SUFFIXES):
            raise InvalidRequest(f"the initial model has a file named {name[:100]!r}, which is not allowed")
        content = bundle[at : at + size]
        if name.endswith(".json"):
            _check_settings(name, bytes(content))
        yield name, content
        at += size


def _check_settings(name: str, text: bytes) -> None:
    """Raise `InvalidRequest` if a JSON file names code; keys are compared after parsing, so escapes do not help."""

    def check(pairs: list[tuple[str, object]]) -> None:
        if any(key in CODE_KEYS for key, _ in pairs):
            raise InvalidRequest(f"the initial model names code to load, in {name}")

    try:
        json.loads(text, object_pairs_hook=check)
    except (ValueError, RecursionError):
        raise InvalidRequest(f"the initial model has a file {name} that is not JSON") from None
