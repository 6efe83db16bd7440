"""A link that sends every silo only the tensors it sent last time, for uploads that choose in both directions.

A silo does not know the federation's value of a tensor it was not sent; if it sends that tensor now, its update holds
−θᵢ instead of θ − θᵢ, and θ is added here.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from hansa.core.link import Answer, Link
from hansa.core.messages import NodeId, Reply, Request, Train, Update
from hansa.core.tensors import Layout, Tensors


@dataclass(frozen=True)
class NarrowLink:
    link: Link
    sent: Mapping[NodeId, Collection[str]]  # what each silo sent last; whoever is not here is sent everything

    def ask(self, asks: Mapping[NodeId, Request], until: float | None) -> Iterator[Answer]:
        narrow = {node: self._narrow(node, request) for node, request in asks.items()}
        for answer in self.link.ask(narrow, until):
            whole, pushed = asks[answer.node], narrow[answer.node]
            if isinstance(whole, Train) and isinstance(pushed, Train) and pushed is not whole:
                yield replace(answer, reply=_completed(answer.reply, whole.model, pushed.model.layout))
            else:
                yield answer

    def _narrow(self, node: NodeId, request: Request) -> Request:
        if not isinstance(request, Train) or node not in self.sent:
            return request
        whole = request.model
        return replace(request, model=whole.only(self.sent[node]), room=whole.layout.size)


def _completed(reply: Reply, model: Tensors, pushed: Layout) -> Reply:
    if not isinstance(reply, Update):
        return reply
    gradient, known = reply.gradient.copy(), model.named()
    for name, value in gradient.named().items():
        if name not in pushed.spans and name in known and known[name].shape == value.shape:  # else it is refused later
            value.add_(known[name])
    return replace(reply, gradient=gradient)
