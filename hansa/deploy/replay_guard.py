"""Protection against replayed envelopes: the newest position that a node has accepted, on its disk."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hansa.deploy.network.envelope import Envelope, EnvelopeError


class ReplayGuard:
    """The newest run and sequence number that were accepted, in ``file``; ``log`` is called if it is damaged."""

    def __init__(self, file: Path, log: Callable[[str], None] = lambda text: None) -> None:
        self._file = file
        self._state: dict[str, Any] = {"run": "", "run_started": 0.0, "sequence": -1, "request": ""}
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
            run, started, sequence = str(found["run"]), float(found["run_started"]), int(found["sequence"])
            request = str(found.get("request", ""))
            self._state = {"run": run, "run_started": started, "sequence": sequence, "request": request}
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError) as error:
            log(f"{file} is damaged ({type(error).__name__}): the next envelope of the parent sets it anew")

    @property
    def position(self) -> tuple[str, int, str] | None:
        """The run, number and request of the newest envelope that was accepted; None before the first one."""
        state = self._state
        return (state["run"], state["sequence"], state["request"]) if state["run"] else None

    def check(self, envelope: Envelope) -> None:
        """Accept an envelope and store its position; raises `EnvelopeError` if a newer one was accepted before."""
        state = self._state
        if envelope.run == state["run"]:
            if envelope.sequence < state["sequence"]:
                raise EnvelopeError("the envelope is older than one that was accepted before")
            if envelope.sequence == state["sequence"] and state["request"] not in ("", envelope.request):
                raise EnvelopeError("the envelope has the number of another one that was accepted before")
        elif envelope.run_started <= state["run_started"]:
            raise EnvelopeError("the envelope belongs to an older run")
        if envelope.position != (state["run"], state["sequence"]):
            newer = {
                "run": envelope.run,
                "run_started": envelope.run_started,
                "sequence": envelope.sequence,
                "request": envelope.request,
            }
            draft = self._file.with_suffix(".draft")
            draft.write_text(json.dumps(newer), encoding="utf-8")
            os.replace(draft, self._file)
            self._state = newer
