"""A flat folder as one sequence of bytes: a line of JSON with names and sizes, then the files. No paths, no links, and
no code: only files that hold weights, words and settings, and no settings that name code to be loaded."""

import json
import re
from collections.abc import Iterator
from mmap import ACCESS_READ, mmap
from pathlib import Path

from hansa.deploy.network.blob_server import Unusable
from hansa.files import atomically

LARGEST_LINE = 1 << 20
SAFE = (".json", ".safetensors", ".txt", ".model", ".spm")  # how their names end; .model, .spm: of SentencePiece
CODE = {"auto_map", "custom_pipelines", "trust_remote_code"}


def pack(folder: Path, file: Path) -> memoryview:
    """Write the bundle and look into it; the same folder always gives the same bytes."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.suffix in SAFE)
    draft = file.with_name(f".{file.name}.draft")
    with draft.open("wb") as out:
        out.write(json.dumps([[path.name, path.stat().st_size] for path in files]).encode() + b"\n")
        for path in files:
            with path.open("rb") as stream:
                while piece := stream.read(1 << 20):
                    out.write(piece)
    draft.replace(file)
    with file.open("rb") as stream:
        return memoryview(mmap(stream.fileno(), 0, access=ACCESS_READ))


def unpack(bundle: memoryview, folder: Path) -> None:
    """Write the files of a bundle into a new folder; names that lead elsewhere are refused."""
    with atomically(folder) as draft:
        for name, part in _parts(bundle):
            (draft / name).write_bytes(part)


def _parts(bundle: memoryview) -> Iterator[tuple[str, memoryview]]:
    line, newline, _ = bytes(bundle[:LARGEST_LINE]).partition(b"\n")
    at = len(line) + 1
    try:
        listed = json.loads(line) if newline else None
        entries = [(str(name), int(size)) for name, size in listed] if isinstance(listed, list) else None
    except (ValueError, TypeError):
        entries = None
    if entries is None or any(size < 0 for _, size in entries) or at + sum(s for _, s in entries) != len(bundle):
        raise Unusable("the common start is not a bundle of files")
    for name, size in entries:
        if not re.fullmatch(r"\w[\w.-]{0,99}", name, re.ASCII) or ".." in name or not name.endswith(SAFE):
            raise Unusable(f"the common start has a file called {name[:100]!r}")
        part = bundle[at : at + size]
        if name.endswith(".json"):
            _check_settings(name, bytes(part))
        yield name, part
        at += size


def _check_settings(name: str, text: bytes) -> None:
    """Whatever the key is written like, it is the same key."""

    def check(pairs: list[tuple[str, object]]) -> None:
        if any(key in CODE for key, _ in pairs):
            raise Unusable(f"the common start names code to be loaded, in {name}")

    try:
        json.loads(text, object_pairs_hook=check)
    except (ValueError, RecursionError):
        raise Unusable(f"the common start has a file {name} that is not JSON") from None
