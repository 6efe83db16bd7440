"""What a silo holds of the model that it was sent, where the downlink sends differences (`download`).

A request with a difference becomes one with the whole model before anything else looks at it: the policy, the masks and
the training see the model that the silo will train from.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from hansa.client.state import StateFolder
from hansa.core.encoded_downlink import advanced
from hansa.core.encoding import EncodingError
from hansa.core.messages import Failure, Reply, Request, Train
from hansa.core.tensors import Tensors

SLOT = "received"


@dataclass(frozen=True)
class HeldModel:
    """The model that a silo was sent in a round."""

    round: int
    model: Tensors


@dataclass(frozen=True)
class Receiving:
    """Answers requests with ``answer``, after differences became whole models; ``store``: where the last one is."""

    answer: Callable[[Request], Reply]
    store: StateFolder

    def __call__(self, request: Request) -> Reply:
        """The reply; a `Failure` if the silo does not hold the model that a difference starts from."""
        if not isinstance(request, Train):
            return self.answer(request)
        if request.moved is not None:
            held = self.store.recall(request.round).get(SLOT, HeldModel)
            if held is None or held.round != request.held:
                return Failure(f"it does not hold the model of round {request.held}, from which the difference starts")
            try:
                model = advanced(held.model, request.moved)
            except EncodingError as error:
                return Failure(f"the difference cannot be used: {error}")
            request = replace(request, model=model, moved=None, held=0, capacity=0)
        reply = self.answer(request)
        if not isinstance(reply, Failure):
            self.store.keep(request.round, {SLOT: HeldModel(request.round, request.model)}, request.durable)
        return reply
