"""Names of NATS subjects and streams, and the permissions of every node on them.

Every child of a parent has, for each run, a request subject (``req``, the parent writes) and a reply subject (``rep``,
the child writes); for all runs together it has a heartbeat subject and a subject of notes (``note``, the parent
writes). The stream stores the newest message of each subject of ``req``, ``rep`` and ``note``, so that runs that go on
at the same time do not replace each other's messages. A child may use its own subjects only.
"""

import hashlib
import re
from dataclasses import dataclass, replace

from hansa.deploy.network.envelope import NO_RUN

ANY_RUN = "*"


def token(name: str) -> str:
    """Return a node's name as one token of a subject: unchanged if possible, else shortened and with a digest."""
    if re.fullmatch(r"[A-Za-z0-9_-]{1,48}", name):
        return name
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", name)[:32].strip("-")
    return f"{plain or 'node'}-{hashlib.sha256(name.encode()).hexdigest()[:10]}"


@dataclass(frozen=True)
class Subjects:
    """The subjects between one parent and its children in one federation.

    ``run``: the id of the run whose requests and replies are meant; by default those that belong to no run.
    """

    federation: str
    parent: str
    run: str = NO_RUN

    def of_run(self, run: str) -> "Subjects":
        """The subjects of one run; `ANY_RUN`: patterns for those of all runs."""
        return replace(self, run=run)

    @property
    def root(self) -> str:
        """The prefix of all subjects."""
        return f"hansa.{token(self.federation)}.{token(self.parent)}"

    @property
    def stream(self) -> str:
        """The JetStream stream that stores requests and replies."""
        return f"hansa_{token(self.federation)}_{token(self.parent)}"

    def request(self, node: str) -> str:
        """The subject of requests to a child."""
        return f"{self.root}.req.{token(node)}.{self.run}"

    def reply(self, node: str) -> str:
        """The subject of a child's replies."""
        return f"{self.root}.rep.{token(node)}.{self.run}"

    @property
    def replies(self) -> str:
        """The pattern of all children's replies."""
        return f"{self.root}.rep.*.{self.run}"

    def heartbeat(self, node: str) -> str:
        """The subject of a child's heartbeats."""
        return f"{self.root}.heartbeat.{token(node)}"

    def note(self, node: str) -> str:
        """The subject of the parent's notes to a child."""
        return f"{self.root}.note.{token(node)}"

    def inbox(self, node: str) -> str:
        """The prefix of the subjects on which the broker answers a node; no other node may subscribe to it."""
        return f"_INBOX.{self.root}.{token(node)}"

    def latest(self, subject: str) -> str:
        """The JetStream API subject that returns the newest stored message of a subject."""
        return f"$JS.API.DIRECT.GET.{self.stream}.{subject}"

    def heard_by(self, node: str) -> list[str]:
        """The subjects that a child hears: what its parent sends it, and what anyone sends under its own name."""
        every = self.of_run(ANY_RUN)
        return [every.request(node), self.note(node), self.heartbeat(node), every.reply(node)]

    def child_permissions(self, node: str) -> dict[str, list[str]]:
        """The subjects on which a child may publish and subscribe."""
        every = self.of_run(ANY_RUN)
        return {
            "publish": [
                every.reply(node),
                self.heartbeat(node),
                *map(self.latest, (every.request(node), self.note(node))),
            ],
            "subscribe": [*self.heard_by(node), f"{self.inbox(node)}.>"],
        }

    def parent_permissions(self) -> dict[str, list[str]]:
        """The subjects on which the parent may publish and subscribe."""
        api = [f"$JS.API.STREAM.{verb}.{self.stream}" for verb in ("CREATE", "UPDATE", "INFO", "PURGE")]
        return {
            "publish": [f"{self.root}.req.*.*", f"{self.root}.note.*", *api, f"$JS.API.DIRECT.GET.{self.stream}.>"],
            "subscribe": [f"{self.root}.>", f"{self.inbox(self.parent)}.>"],
        }
