"""The initial model, tokenizer and labels of a run as one sequence of bytes: a JSON list of files, then their content.

A frozen base is not part of it (`hansa.models.base`).

Only a flat folder is packed. A receiver accepts only the files and settings that `hansa.models.folder` allows, only
tensors that the configuration implies, and only a model that fits into its memory; it writes nothing before that.
"""

import json
from collections.abc import Mapping
from mmap import ACCESS_READ, mmap
from pathlib import Path

from hansa.core.errors import ConfigError
from hansa.deploy import quota
from hansa.deploy.network.blob_protocol import InvalidRequest
from hansa.files import atomically
from hansa.models import folder as model_folder
from hansa.models.base import BASE
from hansa.models.weights import Footprint, TensorInfo, check_tensors

MAX_LINE_BYTES = 1 << 20
COPIES = 4  # of a model in a silo's memory: the model, its gradients, the received and the outgoing tensors


def pack(folder: Path, file: Path) -> memoryview:
    """Write the bundle of a folder to ``file`` and return it mapped; the same folder gives the same bytes."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and model_folder.is_allowed(path.name))
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
    """Write the files of a bundle into a new folder; raises `InvalidRequest` if the model is not acceptable."""
    files = _files(bundle)
    try:
        config, tensors = model_folder.check(files)
        footprint = without_base(tensors) if BASE in files else check_tensors(config, tensors)
    except ConfigError as error:
        raise InvalidRequest(f"the initial model is refused: {error}") from None
    quota.check_model(COPIES * footprint.parameters + footprint.buffers)
    with atomically(folder) as draft:
        for name, content in files.items():
            (draft / name).write_bytes(content)


def without_base(tensors: Mapping[str, TensorInfo]) -> Footprint:
    """The memory of adapters; that of the base is known to the silo, which has a copy."""
    return Footprint(sum(info.bytes for info in tensors.values()), 0)


def _files(bundle: memoryview) -> dict[str, memoryview]:
    """The content of each file of a bundle; raises `InvalidRequest` if the bytes are not a list of files and files."""
    line, newline, _ = bytes(bundle[:MAX_LINE_BYTES]).partition(b"\n")
    at = len(line) + 1
    try:
        listed = json.loads(line) if newline else None
        entries = [(str(name), int(size)) for name, size in listed] if isinstance(listed, list) else None
    except (ValueError, TypeError, RecursionError):
        entries = None
    if entries is None or any(size < 0 for _, size in entries) or at + sum(s for _, s in entries) != len(bundle):
        raise InvalidRequest("the initial model is not a bundle of files")
    files: dict[str, memoryview] = {}
    for name, size in entries:
        if name in files:
            raise InvalidRequest("the initial model has two files of one name")
        files[name] = bundle[at : at + size]
        at += size
    return files
