"""Protection against replayed envelopes: the newest position that a node has accepted in each run, on its disk."""

import json
import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, NamedTuple

from hansa.deploy.network.envelope import Envelope, EnvelopeError

MAX_RUNS = 64  # that are remembered: those with the newest envelopes


class Position(NamedTuple):
    """The newest envelope of a run that was accepted."""

    started: float  # of the run, in seconds since 1970
    sequence: int
    request: str


class ReplayGuard:
    """The newest position of each run that was accepted, in ``file``; ``log`` is called if it is damaged.

    Within a run, sequence numbers only rise. A run that was not seen before must have begun after all that were, or be
    one that the parent states to be open.
    """

    def __init__(self, file: Path, log: Callable[[str], None] = lambda text: None) -> None:
        self._file = file
        self._runs: dict[str, Position] = {}  # the one that was used last is the last
        try:
            self._runs = _parsed(json.loads(file.read_text(encoding="utf-8")))
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            log(f"{file} is damaged ({type(error).__name__}): the next envelope of the parent sets it anew")

    @property
    def positions(self) -> list[tuple[str, int, str]]:
        """The run, number and request of the newest envelope of every run, the newest first."""
        return [(run, found.sequence, found.request) for run, found in reversed(self._runs.items())]

    @property
    def _newest_start(self) -> float:
        return max((found.started for found in self._runs.values()), default=0.0)

    def check(self, envelope: Envelope, open: Collection[str] = ()) -> None:
        """Accept an envelope and store its position; raises `EnvelopeError` if a newer one was accepted before.

        ``open``: the runs that the parent's newest note lists.
        """
        known = self._runs.get(envelope.run)
        if known is not None:
            if envelope.sequence < known.sequence:
                raise EnvelopeError("the envelope is older than one that was accepted before")
            if envelope.sequence == known.sequence and known.request not in ("", envelope.request):
                raise EnvelopeError("the envelope has the number of another one that was accepted before")
        elif envelope.run not in open and envelope.run_started <= self._newest_start:
            raise EnvelopeError("the envelope belongs to an older run")
        if known is None or known.sequence != envelope.sequence:
            newer = {run: found for run, found in self._runs.items() if run != envelope.run}
            newer[envelope.run] = Position(envelope.run_started, envelope.sequence, envelope.request)
            newer = dict(list(newer.items())[-MAX_RUNS:])
            draft = self._file.with_suffix(".draft")
            draft.write_text(json.dumps({"runs": newer}), encoding="utf-8")
            os.replace(draft, self._file)
            self._runs = newer


def _parsed(found: Any) -> dict[str, Position]:
    if "run" in found:  # a file of an earlier version, which knew one run
        found = {"runs": {found["run"]: [found["run_started"], found["sequence"], found.get("request", "")]}}
    return {
        str(run): Position(float(started), int(sequence), str(request))
        for run, (started, sequence, request) in found["runs"].items()
    }
