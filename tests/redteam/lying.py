"""A coordinator that lies: it holds its own kit, sends any settings, any starting model and any request.

It talks over real sockets to agents that are real processes, started by `tests.faults.processes.Deployment`. The
silos' defences are switched off one by one by the functions of undefended.py, to show that each attack works without.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import torch

from hansa.config.federation import Federation
from hansa.config.shared import for_members
from hansa.core.learner import Learner
from hansa.core.messages import Reply, Request
from hansa.core.tensors import Tensors
from hansa.deploy.bundle import pack
from hansa.deploy.kit import COORDINATOR, Kit
from hansa.deploy.network.link import NatsLink
from hansa.deploy.server_session import server_session
from hansa.models import build, tokenizer
from hansa.models.adapt import adapt
from hansa.tasks.base import TASKS
from tests.faults.processes import Deployment

WAIT_SECONDS = 120.0


@dataclass
class Liar:
    """The lying coordinator of one run; ``link`` reaches the silos, ``folder`` is its own."""

    link: NatsLink
    folder: Path

    def settings(self, federation: Federation) -> None:
        """Send these settings with every further request."""
        self.link.share_settings(for_members(federation))

    def start(self, start: Path) -> None:
        """Send this starting model with every further request."""
        self.link.share_start(pack(start, self.folder / "start.bundle"))

    def ask(self, node: str, request: Request) -> Reply:
        """The reply of a silo."""
        [answer] = self.link.ask({node: request}, monotonic() + WAIT_SECONDS)
        return answer.reply


@contextmanager
def lying(deployment: Deployment, name: str = "lie") -> Iterator[Liar]:
    """A lying coordinator with the coordinator's kit; each ``name`` is another run."""
    kit, folder = Kit(deployment.kits / COORDINATOR), deployment.folder / name
    with server_session(kit, folder, None, lambda text: None, list(deployment.federation.silos)) as link:
        yield Liar(link, folder)


def make_start(federation: Federation, folder: Path) -> Tensors:
    """Write the honest start of a federation with a byte tokenizer into ``folder``; return its trainable values."""
    task, words = TASKS.build(federation.task), tokenizer.byte_tokenizer()
    model = build.initial(federation.model, task.auto, words, federation.data.max_length, (), federation.seed)
    save_start(model, words, folder)
    return Learner(adapt(model, federation.model, federation.seed)).state.copy()


def save_start(model: Any, words: Any, folder: Path) -> None:
    folder.mkdir(parents=True)
    words.save_pretrained(folder)
    model.save_pretrained(folder)
    (folder / "labels.json").write_text(json.dumps([]))


def spelling_model(start: Tensors) -> Tensors:
    """A model without memory whose loss on a token tells which token it is: logits are a bias with distinct values."""
    crafted = Tensors.zeros(start.layout)
    [bias] = [name for name in start.layout.names if name.endswith("predictions.bias")]
    values = torch.arange(len(crafted[bias]), dtype=torch.float32)
    crafted[bias].copy_(values * 0.05)
    return crafted


def spelled(crafted: Tensors, loss: float) -> int | None:
    """The token whose loss under `spelling_model` this is; None if it is the sum over several tokens."""
    [bias] = [values for name, values in crafted.named().items() if name.endswith("predictions.bias")]
    losses = -torch.log_softmax(bias.double(), 0)
    nearest = int((losses - loss).abs().argmin())
    return nearest if abs(float(losses[nearest]) - loss) < 1e-3 else None
