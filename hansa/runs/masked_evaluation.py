"""Evaluation under secure aggregation: the server learns sums of scores over all silos, and no silo's own.

The steps are those of a round of secure aggregation (`hansa.privacy.secure_aggregation.server`): keys, shares, masked
scores in place of updates, revealed shares. A silo that drops out at any step is left out of the sum.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from hansa.client.runtime import Runtime
from hansa.config.sections import SecureAggregation
from hansa.core.inner_node import InnerNode
from hansa.core.messages import Evaluate, Failure, MaskingPart, NodeId, Reply, Request, Scores
from hansa.core.participation import Plan
from hansa.core.round import Round, Server, Turn
from hansa.core.state import ServerState
from hansa.privacy.secure_aggregation.announcement import evaluation_digest
from hansa.privacy.secure_aggregation.numbers import LIMBS, from_words
from hansa.privacy.secure_aggregation.protocol import Refused, Words
from hansa.privacy.secure_aggregation.scores import unflatten
from hansa.privacy.secure_aggregation.server import MaskingServer
from hansa.tasks.base import NamedSums


@dataclass(frozen=True)
class MaskedEvaluation:
    """Asks silos for scores under masks. ``names``: decode → the names of the task's sums."""

    server: Server
    settings: SecureAggregation
    names: Callable[[bool], tuple[str, ...]]

    def ask(self, request: Evaluate) -> tuple[Scores, dict[NodeId, str]]:
        """The scores summed over the silos, and why a silo is not in the sum.

        The scores are empty if too few silos answered; the reason then stands under the server's name.
        """
        server, names = self.server, self.names(request.decode)
        plan = Plan(list(server.children), [])
        round = Round(server, ServerState(request.model, {}), Turn(request.round), plan)
        failures = round.record.failures
        masking = MaskingServer(self.settings, scores=request.masked_as, digest=evaluation_digest(request))
        masking.prepare(round)
        found: dict[NodeId, Words] = {}
        if masking.ready:
            asked: Request = replace(request, masking=MaskingPart(masking.roster))
            for answer in round.link.ask(dict.fromkeys(masking.roster, asked), round.deadline()):
                words = _words(answer.reply, LIMBS * len(names) * request.parts)
                if isinstance(words, str):
                    failures[answer.node] = words
                else:
                    found[answer.node] = words
        try:
            total = masking.total(found)
        except Refused as why:
            return Scores({}), failures | {server.name: f"the sum of the scores cannot be unmasked, because {why}"}
        return unflatten(from_words(total), names, request.parts), failures


def masked_evaluation(runtime: Runtime, root: InnerNode) -> MaskedEvaluation | None:
    """How the nodes below the root are asked for masked scores; None if the federation file does not ask for that."""
    settings, task = runtime.federation.secure_aggregation, runtime.task
    if settings is None or not settings.metrics or not isinstance(task, NamedSums):
        return None
    return MaskedEvaluation(root.server, settings, lambda decode: task.sum_names(runtime.vocabulary.labels, decode))


def _words(reply: Reply, size: int) -> Words | str:
    """The masked words of a reply; or why it has none."""
    if isinstance(reply, Failure):
        return reply.reason
    if not isinstance(reply, Scores) or reply.masked is None or reply.masked.layout.size != size:
        return "it sent no masked scores of this task"
    found: Words = reply.masked.flat.numpy().view(np.uint32).copy()
    return found
