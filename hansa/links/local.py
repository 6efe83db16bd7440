"""Nodes in this very process, asked one after another."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from threading import Lock
from time import monotonic

import torch

from hansa.core import wire
from hansa.core.errors import RunFailed, UserError, place
from hansa.core.link import Answer
from hansa.core.messages import Failure, NodeId, Reply, Request, Update

OUT_OF_MEMORY = (
    "it ran out of memory: lower train.micro_batch or data.max_length, or set train.gradient_checkpointing, or "
    "train.shard with several processes"
)
ALLOCATORS = ("can't allocate memory", "out of memory")  # in the messages of torch's allocators
Find = Callable[[NodeId], Callable[[Request], Reply]]  # a node's `answer`, by name


class LocalLink:
    """Nodes in this process. With ``through_wire`` every message is turned into bytes and back, as on a network."""

    size = 1
    remote = False
    posting = None

    def __init__(self, find: Find, through_wire: bool = False) -> None:
        self._find, self._through_wire = find, through_wire
        self._one_at_a_time = Lock()  # regions ask from threads of their own, and the silos here share one model

    def ask(self, asks: Mapping[NodeId, Request], until: float | None) -> Iterator[Answer]:
        """Ask the nodes one after another; see `Link.ask`."""
        for node, request in asks.items():
            if until is not None and monotonic() > until:
                yield Answer(node, Failure("the deadline passed before it was asked"))
                continue
            if self._through_wire:
                request = wire.decode(wire.encode(request))
            with self._one_at_a_time:
                reply = _own(attempt(self._find(node), request))
            if until is not None and monotonic() > until:
                reply = Failure("it answered after the deadline")
            if self._through_wire:
                reply = wire.decode(wire.encode(reply))
            yield Answer(node, reply, wire.size(request), wire.size(reply))


def _own(reply: Reply) -> Reply:
    """An update lies in the resident model that the next silo will overwrite: take a copy of it."""
    return replace(reply, gradient=reply.gradient.copy()) if isinstance(reply, Update) else reply


def attempt(
    answer: Callable[[Request], Reply], request: Request, reason_of: Callable[[BaseException], str] | None = None
) -> Reply:
    """Ask; if it fails, ask once more; if it fails again, the silo is lost for this request.

    ``reason_of``: an error as the reason of the failure; default: `reason`.
    """
    for tries_left in (1, 0):
        try:
            return answer(request)
        except UserError:
            raise
        except Exception as error:  # whatever a silo's code raises must not end the federation
            if out_of_memory(error):
                return Failure(OUT_OF_MEMORY)
            if not tries_left:
                return Failure((reason_of or reason)(error))
    raise AssertionError("unreachable")


def out_of_memory(error: BaseException) -> bool:
    """Whether an error, or the one that it hides, says that memory is short: the machine's or an accelerator's."""
    inner = error.__context__ if isinstance(error, RunFailed) and error.__context__ is not None else error
    named = isinstance(inner, RuntimeError) and any(text in str(inner) for text in ALLOCATORS)
    return isinstance(inner, MemoryError | torch.OutOfMemoryError) or named


def withheld_reason(error: BaseException) -> str:
    """An error as a reason that may leave the organisation: its type, and nothing of its message."""
    inner = error.__context__ if isinstance(error, RunFailed) and error.__context__ is not None else error
    return f"it failed twice: {type(inner).__name__} (its message stays at the silo)"


def reason(error: BaseException) -> str:
    """An error as a short reason, and where it arose: for a simulation, in which silos belong to the same user.

    Never its traceback, which may quote data. Between organisations see `withheld_reason`.
    """
    text = str(error).strip().splitlines()
    return f"it failed twice: {type(error).__name__}" + (f": {text[0][:200]}" if text else "") + f" ({place(error)})"
