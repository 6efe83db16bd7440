"""Reading requests: an agent fetches the parts that an envelope names, within its quotas, and opens the run."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from hansa.core import wire
from hansa.core.messages import Reply, Request
from hansa.deploy import quota
from hansa.deploy.bundle import unpack
from hansa.deploy.network.blob_client import BlobClient
from hansa.deploy.network.blob_protocol import InvalidRequest
from hansa.deploy.network.envelope import Envelope, Ref
from hansa.privacy.policy.audit_heads import Anchors

MAX_TEXT_BYTES = 256 << 20
MAX_SETTINGS_BYTES = 16 << 20

Answer = Callable[[Request], Reply]


class NodeService(Protocol):
    """What a node does with requests: a silo answers from its data, a region asks its own children."""

    @property
    def anchors(self) -> Anchors | None:
        """The node's audit log and the heads of its parent's; None: it has no log."""

    def open_run(self, folder: Path, settings: bytes) -> Answer:
        """How the node answers in a run; ``folder`` holds the run's files, ``settings`` is the federation file."""

    def log_refusal(self, message: str, round: int, reason: str) -> None:
        """Log a request that could not be used."""


@dataclass(frozen=True)
class OpenRun:
    """A run in which the node takes part. The model is loaded."""

    run: str
    start: Ref | None
    answer: Answer


class RequestReader:
    """Reads requests for a node whose files are in ``home``; keeps the run open and the buffers between requests."""

    def __init__(self, home: Path, service: NodeService) -> None:
        self._home, self._service = home, service
        self._open: OpenRun | None = None
        self._buffers: dict[str, torch.Tensor] = {}

    def close(self) -> None:
        """Close the run that is open: its next request opens it again, from its files."""
        opened, self._open, self._buffers = self._open, None, {}
        close = getattr(opened.answer, "close", None) if opened is not None else None  # of a run_process.RunProcess
        if close is not None:
            close()

    def folder(self, envelope: Envelope) -> Path:
        """The folder of an envelope's run."""
        return self._home / "runs" / envelope.run

    def read(self, envelope: Envelope, blobs: BlobClient) -> tuple[Answer, Request]:
        """Return how the node answers, and the request; raises `InvalidRequest` if the request cannot be used."""
        answer = self._open_run(envelope, blobs)
        announced = envelope.text[1] + sum(size for _, size in envelope.vectors.values())
        self._buffers = {name: buffer for name, buffer in self._buffers.items() if name in envelope.vectors}
        allocated = sum(buffer.nbytes for buffer in self._buffers.values())
        quota.check_request(announced, _model_size(self.folder(envelope)), allocated)
        text = bytes(_fetch(blobs, envelope.text, MAX_TEXT_BYTES))
        vectors = {name: self._vector(blobs, name, ref) for name, ref in envelope.vectors.items()}
        try:
            request = wire.join(text.decode(), vectors)
        except UnicodeDecodeError:
            raise InvalidRequest("the text of the request is not UTF-8") from None
        if not isinstance(request, Request):
            raise InvalidRequest(f"a {type(request).__name__} is not a request")
        return answer, request

    def _open_run(self, envelope: Envelope, blobs: BlobClient) -> Answer:
        """How the node answers in the envelope's run; the model and the data are loaded once."""
        if self._open is not None and (self._open.run, self._open.start) == (envelope.run, envelope.start):
            return self._open.answer
        self.close()
        folder = self.folder(envelope)
        if envelope.settings is None:
            raise InvalidRequest("the request names no settings")
        settings = _fetch(blobs, envelope.settings, MAX_SETTINGS_BYTES)
        if envelope.start is not None and not (folder / "start").exists():
            quota.check_memory(envelope.start[1])
            quota.check_disk(envelope.start[1], folder)
            bundle = memoryview(bytearray(envelope.start[1]))
            blobs.fetch(envelope.start, bundle)
            unpack(bundle, folder / "start")
        answer = self._service.open_run(folder, bytes(settings))
        self._open = OpenRun(envelope.run, envelope.start, answer)
        return answer

    def _vector(self, blobs: BlobClient, name: str, ref: Ref) -> torch.Tensor:
        """Fetch a vector into a buffer that is kept from round to round."""
        floats, rest = divmod(ref[1], 4)
        if rest:
            raise InvalidRequest(f"{ref[1]} bytes are not a float32 vector")
        if name not in self._buffers or self._buffers[name].numel() != floats:
            self._buffers[name] = torch.empty(floats)
        blobs.fetch(ref, wire.as_bytes(self._buffers[name]))
        return self._buffers[name]


def _fetch(blobs: BlobClient, ref: Ref, limit: int) -> memoryview:
    if ref[1] > limit:
        raise InvalidRequest(f"the request announces {ref[1]} bytes, more than the limit of {limit}")
    target = memoryview(bytearray(ref[1]))
    blobs.fetch(ref, target)
    return target


def _model_size(folder: Path) -> int:
    """Bytes of the weights that the run started from; 0 before there are any."""
    return sum(file.stat().st_size for file in (folder / "start").glob("*.safetensors"))
