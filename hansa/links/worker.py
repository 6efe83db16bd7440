"""The process at the other end of a `PoolLink`: it holds a site with one resident model and answers for any silo."""

import json
import os
import signal
from collections.abc import Callable
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
from hansa.core.messages import Failure, Reply, Request, Update
from hansa.data.chunks import show_progress
from hansa.links.local import attempt
from hansa.links.shared_memory import Place, Views

BETWEEN = "\x1e"  # between two messages: a control character, which JSON writes as an escape


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
            envelope, [request] = unpack(connection.recv_bytes())
        except (EOFError, OSError):  # the parent is gone, or done
            os._exit(0)
        reply = _do(envelope, request, host, views)
        try:
            connection.send_bytes(reply)
        except OSError:  # gone meanwhile
            os._exit(0)


def pack(envelope: dict[str, Any], *messages: str) -> bytes:
    """What goes through the pipe: a line for the link itself, then the messages' own lines."""
    return f"{json.dumps(envelope)}\n{BETWEEN.join(messages)}".encode()


def unpack(data: bytes) -> tuple[dict[str, Any], list[str]]:
    """What `pack` packed: the link's own line, and the messages."""
    envelope, _, messages = data.decode().partition("\n")
    return json.loads(envelope), messages.split(BETWEEN)


def _do(envelope: dict[str, Any], text: str, host: SiloHost, views: Views) -> bytes:
    """Answer one request for each silo of a group.

    A training step empties the processor's caches, and what runs next takes several times as long. So everything that
    is not training is done for the whole group in a row, before and after it.
    """
    request = wire.join(text, {name: views.view(tuple(place)) for name, place in envelope["vectors"].items()})
    jobs = [(node, (block, 0, room)) for node, block, room in envelope["jobs"]]
    if len(jobs) > 1:
        for node, _ in jobs:
            host.prefetch(node, request)
    answered = [_answer(node, request, host, views, place) for node, place in jobs]
    packed = [one() for one in answered]
    return pack({"replies": [places for places, _ in packed]}, *(text for _, text in packed))


Packed = tuple[dict[str, Any], str]  # where a reply's vectors are, or a user's mistake in words; and the reply's text


def _answer(node: str, request: Request, host: SiloHost, views: Views, place: Place) -> Callable[[], Packed]:
    """Let a silo answer; return how to pack its reply, which waits if all of it already lies in its place."""
    room = host.runtime.outbox = views.view(place)
    try:
        reply = attempt(lambda asked: host.answer(node)(asked), request)
    except UserError as error:
        mistake = {"user_error": str(error)}, ""
        return lambda: mistake
    if isinstance(reply, Update) and reply.plain and reply.gradient.flat.data_ptr() == room.data_ptr():
        return lambda: _pack_reply(reply, place, views)
    packed = _pack_reply(reply, place, views)  # now: the next silo may overwrite it
    return lambda: packed


def _pack_reply(reply: Reply, place: Place, views: Views) -> Packed:
    """Put a reply's vectors into the block."""
    block, offset, room = place
    text, vectors = wire.split(reply)
    places: dict[str, Place] = {}
    for name, vector in vectors.items():
        length = vector.numel()
        if offset + length > room:
            refusal = Failure(
                f"its reply has {offset + length} values, and there is room for {room} (as many as the request had): "
                "this method sends more than it receives"
            )
            return {"vectors": {}}, wire.split(refusal)[0]
        places[name] = (block, offset, length)
        there = views.view(places[name])
        if there.data_ptr() != vector.data_ptr():
            there.copy_(vector)
        offset += length
    return {"vectors": places}, text
