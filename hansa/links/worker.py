"""The process at the other end of a `PoolLink`: it holds a site with one resident model and answers for any silo."""

import json
import os
import signal
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from hansa.config import Federation
from hansa.errors import UserError
from hansa.links import wire
from hansa.links.blocks import Views
from hansa.links.local import attempt
from hansa.messages import Lost
from hansa.site import Site


def work(connection: Connection, federation: str, folder: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    torch.set_num_threads(1)
    site, views = Site(Federation.model_validate_json(federation), Path(folder)), Views()
    while True:
        try:
            job = json.loads(connection.recv_bytes())
        except (EOFError, OSError):  # the parent is gone, or done
            os._exit(0)
        connection.send_bytes(json.dumps(_do(job, site, views)).encode())


def _do(job: dict[str, Any], site: Site, views: Views) -> dict[str, Any]:
    vectors = {name: views.view(tuple(place)) for name, place in job["vectors"].items()}
    request = wire.join(job["header"], vectors)
    try:
        reply = attempt(lambda r: site.silo(job["node"]).answer(r), request)
    except UserError as error:
        return {"user_error": str(error)}
    header, out = wire.split(reply)
    places, offset = {}, 0
    for name, vector in out.items():
        length = vector.numel()
        if offset + length > job["room"]:
            header, _ = wire.split(
                Lost(f"its reply has {offset + length} values, more than the {job['room']} it was sent")
            )
            return {"header": header, "vectors": {}}
        place = (job["block"], offset, length)
        views.view(place).copy_(vector)
        places[name] = place
        offset += length
    return {"header": header, "vectors": places}
