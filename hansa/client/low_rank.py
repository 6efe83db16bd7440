"""A silo whose adapters have a smaller rank than the federation's: it trains and sends the first rows of A alone.

Only where products are stacked (`hansa.methods.flora`): there B is zero where a round begins, so that the columns of B
that the silo leaves out add nothing.
"""

from collections.abc import Sequence

from torch import Tensor

from hansa.core.factors import FactorNames
from hansa.core.learner import Learner
from hansa.core.tensors import Tensors


class RankLimit:
    """Keeps the last columns of B at zero while a silo trains; ``rank``: the silo's own, None for the whole."""

    def __init__(self, learner: Learner, names: Sequence[FactorNames]) -> None:
        self.rank: int | None = None
        self._names = names
        for one in names:
            # Without a gradient a column of B stays zero, and with it the gradient of the same row of A.
            learner.model.get_parameter(one.b).register_hook(self._limited)  # type: ignore[no-untyped-call]

    def _limited(self, gradient: Tensor) -> Tensor:
        if self.rank is None:
            return gradient
        kept = gradient.clone()
        kept[:, self.rank :] = 0.0
        return kept

    def cut(self, update: Tensors) -> Tensors:
        """The part of an update that the silo trained."""
        if self.rank is None:
            return update
        named = update.named()
        for one in self._names:
            if one.a in named and one.b in named:
                named[one.a], named[one.b] = named[one.a][: self.rank], named[one.b][:, : self.rank]
        return Tensors.of(named)
