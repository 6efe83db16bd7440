"""The process at the other end of a `PoolLink`: it holds a site with one resident model and answers for any silo."""

import json
import os
import signal
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from hansa.client.host import SiloHost
from hansa.client.runtime import Runtime
from hansa.config.federation import Federation
from hansa.config.in_memory import register_definitions
from hansa.core import device, wire
from hansa.core.errors import UserError
from hansa.core.messages import Failure
from hansa.data.chunks import show_progress
from hansa.links.local import attempt
from hansa.links.shared_memory import Views


def work(connection: Connection, number: int, federation: str, folder: str, definitions: bytes) -> None:
    """The main loop of a worker process: answer requests from the pipe until it is closed.

    ``definitions``: what only lives in the parent's memory (`hansa.config.in_memory`).
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    torch.set_num_threads(1)
    show_progress()
    register_definitions(definitions)
    settings, views = Federation.model_validate_json(federation), Views()
    host = SiloHost(Runtime(settings, Path(folder), device=device.choose(number)))
    while True:
        try:
            job, request = unpack(connection.recv_bytes())
        except (EOFError, OSError):  # the parent is gone, or done
            os._exit(0)
        reply = _do(job, request, host, views)
        try:
            connection.send_bytes(reply)
        except OSError:  # gone meanwhile
            os._exit(0)


def pack(envelope: dict[str, Any], message: str) -> bytes:
    """What goes through the pipe: a line for the link itself, then the message's own lines."""
    return f"{json.dumps(envelope)}\n{message}".encode()


def unpack(data: bytes) -> tuple[dict[str, Any], str]:
    """What `pack` packed: the link's own line, and the message."""
    envelope, _, message = data.decode().partition("\n")
    return json.loads(envelope), message


def _do(job: dict[str, Any], text: str, host: SiloHost, views: Views) -> bytes:
    vectors = {name: views.view(tuple(place)) for name, place in job["vectors"].items()}
    request = wire.join(text, vectors)
    try:
        reply = attempt(lambda r: host.answer(job["node"])(r), request)
    except UserError as error:
        return pack({"user_error": str(error)}, "")
    text, out = wire.split(reply)
    places, offset = {}, 0
    for name, vector in out.items():
        length = vector.numel()
        if offset + length > job["room"]:
            refusal = Failure(f"its reply has {offset + length} values, more than the {job['room']} it was sent")
            return pack({"vectors": {}}, wire.split(refusal)[0])
        places[name] = (job["block"], offset, length)
        views.view(places[name]).copy_(vector)
        offset += length
    return pack({"vectors": places}, text)
