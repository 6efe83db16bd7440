"""Cao et al. (2021), FLTrust: Byzantine-robust Federated Learning via Trust Bootstrapping, Section IV; at every node.

    trust(c) = cos(g_c, g_q)

g_c: what child c sends; g_q: what node q itself moves on data of its own, from the very model that its children start
from. A node of a tree that holds data thus knows which way learning goes, and how far: a child that points the other
way (turned round), or that is much longer (scaled up), is left out of the round, key layers and residuals included.
That is the filter WorldLM's Section 5.4 and Appendix A.4 leave open. It compares movements, because the layers
themselves are all alike (cosines of 0.7 to 0.99), poisoned or not; and movements from one start, because a node's own
last steps are partly undone by whoever comes next, honest or not (cosines of -0.1).
Without data of its own a node goes by its children: the median of their lengths and, of three or more, the
coordinate-wise median of their directions.
With ``by: keys`` it looks at key layers alone, as attention and the choice of residuals do, and at their lengths only:
a child's key layers carry its own past beside what it learned (AggParent), so among honest children their directions
differ from the node's, too. It finds updates that are scaled up, not those that are turned round.
Deviations: FLTrust weighs by ReLU(cos) and cuts to the length of g_q; here a child is in or out, so that among honest
children nothing changes. A child with strong noise (`privacy`) looks like a liar: no filter where leaves are private.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from hansa.core.link import Answer
from hansa.core.messages import Failure, LayersPart, NodeId, Update
from hansa.core.settings import Positive, Section
from hansa.core.tensors import Tensors


class TrustFilter(Section):
    cosine: float = 0.0  # a child must point less away than this
    bound: Positive = 4.0  # and be at most so many times as long
    by: Literal["update", "keys"] = "update"  # all that a child sends, or its key layers alone

    @property
    def needs_key_layers(self) -> bool:
        """Whether it judges by the key layers that children send."""
        return self.by == "keys"

    def sift(self, answers: Iterator[Answer], name: NodeId, counts: bool, keys: Sequence[str] = ()) -> Iterator[Answer]:
        held = [_copied(answer) for answer in answers]
        moves = {a.node: a.reply.gradient for a in held if isinstance(a.reply, Update)}
        if self.by == "keys":
            moves = {node: move.only(keys) for node, move in moves.items()}
        own = moves.pop(name, None)
        for answer in held:
            reason = self._doubt(answer.node, moves, own) if answer.node in moves else ""
            if counts or answer.node != name:
                yield replace(answer, reply=Failure(reason)) if reason else answer

    def _doubt(self, child: NodeId, moves: Mapping[NodeId, Tensors], own: Tensors | None) -> str:
        """Why a child is left out; empty if it is trusted. What is not finite has a reason already."""
        move = moves[child]
        direction = _direction(child, moves, own)
        usual = float(direction.norm()) if own is not None and direction is not None else _middle(moves)
        if self.by == "keys":
            direction, usual = None, max(usual, min(float(one.flat.norm()) for one in moves.values()))
        length = float(move.flat.norm())
        if length > self.bound * usual:
            return f"its update is {length / max(usual, 1e-30):.3g} times as long as usual here; at most {self.bound:g}"
        if direction is None:
            return ""
        alike = float(cosine_similarity(move.flat, direction, dim=0))
        return f"its update points away from what is learned here (cosine {alike:.3f})" if alike < self.cosine else ""


def _direction(child: NodeId, moves: Mapping[NodeId, Tensors], own: Tensors | None) -> Tensor | None:
    layout = moves[child].layout
    if own is not None:
        return own.only(layout.names).flat
    rows = [move.flat / move.flat.norm().clamp_min(1e-30) for move in moves.values() if move.layout == layout]
    return torch.stack(rows).quantile(0.5, dim=0) if len(rows) >= 3 else None


def _middle(moves: Mapping[NodeId, Tensors]) -> float:
    return median(float(move.flat.norm()) for move in moves.values())


def _copied(answer: Answer) -> Answer:
    """An answer's tensors are valid until the next one is asked for."""
    if not isinstance(answer.reply, Update):
        return answer
    reply = replace(answer.reply, gradient=answer.reply.gradient.copy(), layers=_copied_layers(answer.reply.layers))
    return replace(answer, reply=reply)


def _copied_layers(layers: LayersPart | None) -> LayersPart | None:
    return layers and replace(layers, residuals=layers.residuals.copy())
