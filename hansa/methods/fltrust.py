"""Cao et al. (2021), FLTrust: Byzantine-robust Federated Learning via Trust Bootstrapping, Section IV; at every node.

    trust(c) = cos(g_c, g_q)

g_c: the update of child c; g_q: the reference update of node q on data of its own, from the same model that its
children start from. A node of a tree that holds data thus knows the direction and the length of an honest update. A
child whose update points the other way (sign-flipped) or is much longer (scaled up) is left out of the round, with
its key layers and residuals. This is the filter that WorldLM's Section 5.4 and Appendix A.4 leave open. It compares
movements, because layers themselves are similar (cosines of 0.7 to 0.99), poisoned or not; and movements from one
start, because training on other data partly undoes a node's own last steps, also where all nodes are honest (cosines
of -0.1).
A node without data of its own compares its children with each other: with the median of their lengths and, from three
children on, with the coordinate-wise median of their directions.
With ``by: keys`` it looks at key layers only, as attention and the choice of residuals do, and only at their lengths: a
child's key layers also contain its own past (AggParent), so that directions differ among honest children too. It then
finds updates that are scaled up, not those that are sign-flipped.
Deviations: FLTrust weighs by ReLU(cos) and rescales to the length of g_q; here a child is accepted or rejected, so that
nothing changes among honest children. Strong noise (`privacy`) looks like an attack: do not filter private leaves.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cosine_similarity

from hansa.core.link import Answer
from hansa.core.messages import Failure, LayersPart, NodeId, Update
from hansa.core.settings import Positive, Section
from hansa.core.tensors import Tensors


class TrustFilter(Section):
    """Rejects children whose updates are too long or point away from the node's own."""

    cosine: float = Field(default=0.0, description="Smallest cosine between a child's update and the reference.")
    bound: Positive = Field(default=4.0, description="Largest length of a child's update, over the reference's.")
    by: Literal["update", "keys"] = Field(
        default="update", description="Compare whole updates, or only the lengths of key layers."
    )

    @property
    def needs_key_layers(self) -> bool:
        """Whether it judges by the key layers that children send."""
        return self.by == "keys"

    def sift(self, answers: Iterator[Answer], name: NodeId, counts: bool, keys: Sequence[str] = ()) -> Iterator[Answer]:
        """Reject answers whose update is too long, or points away from the node's own update or the children's median.

        All answers are read, and their tensors copied, before the first one is yielded.
        """
        held = [_copied(answer) for answer in answers]
        moves = {a.node: a.reply.gradient for a in held if isinstance(a.reply, Update)}
        if self.by == "keys":
            moves = {node: move.only(keys) for node, move in moves.items()}
        own = moves.pop(name, None)
        for answer in held:
            reason = self._problem(answer.node, moves, own) if answer.node in moves else ""
            if counts or answer.node != name:
                yield replace(answer, reply=Failure(reason)) if reason else answer

    def _problem(self, child: NodeId, moves: Mapping[NodeId, Tensors], own: Tensors | None) -> str:
        """Why a child is rejected; empty if it is trusted. Updates that are not finite are rejected elsewhere."""
        move = moves[child]
        direction = _direction(child, moves, own)
        usual = float(direction.norm()) if own is not None and direction is not None else _median_length(moves)
        if self.by == "keys":
            direction, usual = None, max(usual, min(float(one.flat.norm()) for one in moves.values()))
        length = float(move.flat.norm())
        if length > self.bound * usual:
            times = length / max(usual, 1e-30)
            return f"its update is {times:.3g} times as long as usual here; at most {self.bound:g} is allowed"
        if direction is None:
            return ""
        alike = float(cosine_similarity(move.flat, direction, dim=0))
        return f"its update points away from the reference (cosine {alike:.3f})" if alike < self.cosine else ""


def _direction(child: NodeId, moves: Mapping[NodeId, Tensors], own: Tensors | None) -> Tensor | None:
    layout = moves[child].layout
    if own is not None:
        return own.only(layout.names).flat
    rows = [move.flat / move.flat.norm().clamp_min(1e-30) for move in moves.values() if move.layout == layout]
    return torch.stack(rows).quantile(0.5, dim=0) if len(rows) >= 3 else None


def _median_length(moves: Mapping[NodeId, Tensors]) -> float:
    return median(float(move.flat.norm()) for move in moves.values())


def _copied(answer: Answer) -> Answer:
    """A copy of an answer: its tensors are valid only until the next one is asked for."""
    if not isinstance(answer.reply, Update):
        return answer
    reply = replace(answer.reply, gradient=answer.reply.gradient.copy(), layers=_copied_layers(answer.reply.layers))
    return replace(answer, reply=reply)


def _copied_layers(layers: LayersPart | None) -> LayersPart | None:
    return layers and replace(layers, residuals=layers.residuals.copy())
