"""How nodes, subjects and streams are called at the broker, and who may speak and listen where.

Below one parent every child has two letter boxes, ``req`` (from the parent) and ``rep`` (from the child), each holding
the latest message only, and ``life``, where it says that it is there. A child can read and write its own alone.
"""

import hashlib
import re
from dataclasses import dataclass


def token(name: str) -> str:
    """A name as one word of a subject: itself where that is possible, else what is left of it and a digest."""
    if re.fullmatch(r"[A-Za-z0-9_-]{1,48}", name):
        return name
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", name)[:32].strip("-")
    return f"{plain or 'node'}-{hashlib.sha256(name.encode()).hexdigest()[:10]}"


@dataclass(frozen=True)
class Subjects:
    """The subjects of one federation below one parent."""

    federation: str
    parent: str

    @property
    def root(self) -> str:
        return f"hansa.{token(self.federation)}.{token(self.parent)}"

    @property
    def stream(self) -> str:
        return f"hansa_{token(self.federation)}_{token(self.parent)}"

    def request(self, node: str) -> str:
        return f"{self.root}.req.{token(node)}"

    def reply(self, node: str) -> str:
        return f"{self.root}.rep.{token(node)}"

    def life(self, node: str) -> str:
        return f"{self.root}.life.{token(node)}"

    def inbox(self, node: str) -> str:
        """Where the broker answers a node: nobody else may listen there."""
        return f"_INBOX.{self.root}.{token(node)}"

    def latest(self, subject: str) -> str:
        """Ask here for the newest stored message of a subject."""
        return f"$JS.API.DIRECT.GET.{self.stream}.{subject}"

    def child_may(self, node: str) -> dict[str, list[str]]:
        return {
            "publish": [self.reply(node), self.life(node), self.latest(self.request(node))],
            "subscribe": [self.request(node), f"{self.inbox(node)}.>"],
        }

    def parent_may(self) -> dict[str, list[str]]:
        api = [f"$JS.API.STREAM.{verb}.{self.stream}" for verb in ("CREATE", "UPDATE", "INFO", "PURGE")]
        return {
            "publish": [f"{self.root}.req.*", *api, f"$JS.API.DIRECT.GET.{self.stream}.>"],
            "subscribe": [f"{self.root}.>", f"{self.inbox(self.parent)}.>"],
        }
