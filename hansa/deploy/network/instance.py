"""Which process a message comes from: the installation (a folder on one machine) and the start of the process.

Every agent has an installation id in its home, under the home's lock, and a start number that rises with every start.
A restart keeps the id; another machine, or another home, has another one. Two processes that send messages at the same
time under one name therefore differ, whether the kit alone was copied or the home with it.
"""

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from time import time

FILE = "instance.json"
FORMAT = r"[0-9a-f]{16}\.[0-9]{1,15}"


@dataclass(frozen=True)
class Instance:
    """A process; ``started`` is its start in milliseconds since 1970, higher than at any earlier start."""

    id: str
    started: int

    def __str__(self) -> str:
        return f"{self.id}.{self.started}"

    @staticmethod
    def parse(text: str) -> "Instance":
        """The instance with a text; raises `ValueError` if the text is malformed."""
        if not re.fullmatch(FORMAT, text):
            raise ValueError("it names no process")
        id, _, started = text.partition(".")
        return Instance(id, int(started))


def start_instance(home: Path) -> Instance:
    """The instance of a process that starts in ``home``; call it while the home's lock is held."""
    file = home / FILE
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        before = Instance.parse(f"{found['id']}.{found['started']}")
    except (OSError, ValueError, KeyError, TypeError):
        before = Instance(token_hex(8), 0)
    now = Instance(before.id, max(before.started + 1, int(time() * 1000)))
    draft = file.with_suffix(".draft")
    try:
        draft.write_text(json.dumps({"id": now.id, "started": now.started}), encoding="utf-8")
        os.replace(draft, file)
    except OSError:
        if before.started == 0:
            raise  # another start would look like another installation
    return now
