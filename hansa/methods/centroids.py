"""What a silo's data look like to a model, in few numbers: groups of samples, each as a mean.

The mean of several texts, position by position, is over *real* tokens alone: at position t over the texts that are
longer than t. So it has as many positions as the longest of them, and short texts do not water it down with padding.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hansa.core import representations as inside
from hansa.core.errors import ConfigError
from hansa.core.knowledge import Indices, Samples
from hansa.core.learner import Learner
from hansa.methods.centroid_noise import Noise, bounded


@dataclass(frozen=True)
class Outputs:
    """Every sample as the model sees it."""

    pooled: Tensor  # samples × width
    predictions: Tensor  # samples × classes


def model_outputs(learner: Learner, samples: Samples) -> Outputs:
    pooled: Tensor | None = None
    predictions: Tensor | None = None
    with torch.inference_mode():
        for indices, batch in samples.batches():
            some, logits = (seen.cpu() for seen in inside.represent(learner.model, batch.inputs))
            if pooled is None or predictions is None:
                pooled, predictions = (torch.zeros(samples.size, t.shape[1]) for t in (some, logits))
            pooled[indices], predictions[indices] = some, logits.softmax(dim=-1)
    assert pooled is not None
    assert predictions is not None
    return Outputs(pooled, predictions)


def k_means(points: NDArray[np.float32], count: int, rng: np.random.Generator) -> list[Indices]:
    """k-means (scikit-learn, one thread): the points of each cluster, at most ``count`` clusters and none empty."""
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits

    different = min(count, len(np.unique(points, axis=0)))  # equal points cannot lie in different clusters
    seed = int(rng.integers(1 << 31))
    with threadpool_limits(1):
        labels = KMeans(different, n_init=1, random_state=seed).fit_predict(points)
    found = [np.flatnonzero(labels == label) for label in range(different)]
    return [members for members in found if len(members)]


def require_sklearn(method: str) -> None:
    """Said before a run begins."""
    try:
        import sklearn  # noqa: F401
    except ImportError:
        raise ConfigError(f"method '{method}' clusters with scikit-learn: pip install 'hansa[fedkc]'") from None


def mean_rows(values: Tensor, groups: list[Indices]) -> Tensor:
    """The mean of each group's rows."""
    return torch.stack([values[torch.from_numpy(members)].mean(dim=0) for members in groups])


def mean_texts(
    learner: Learner, samples: Samples, groups: list[Indices], noise: Noise | None = None
) -> tuple[Tensor, Tensor]:
    """The mean of each group's texts where the first block gets them (groups × positions × width), and over how many
    texts it is (groups × positions). A sample is in at most one group; sums are kept, not the texts. Where there will
    be ``noise``, each vector is bounded first.
    """
    group_of = np.full(samples.size, -1)
    for number, members in enumerate(groups):
        group_of[members] = number
    total, count = torch.zeros(len(groups), 0, 0), torch.zeros(len(groups), 0)
    with torch.inference_mode():
        for indices, batch in samples.batches():
            wanted = np.flatnonzero(group_of[indices] >= 0)
            if not len(wanted):
                continue
            rows, places = torch.from_numpy(wanted), torch.from_numpy(group_of[indices[wanted]])
            inputs = {name: values[rows.to(values.device)] for name, values in batch.inputs.items()}
            real = inputs["attention_mask"].cpu().float()
            embedded = bounded(inside.embed(learner.model, inputs).cpu(), noise) * real.unsqueeze(-1)
            longer = max(0, real.shape[1] - total.shape[1])
            width = embedded.shape[-1]
            total = torch.cat([total.reshape(len(groups), -1, width), torch.zeros(len(groups), longer, width)], dim=1)
            count = torch.cat([count, torch.zeros(len(groups), longer)], dim=1)
            total[:, : real.shape[1]].index_add_(0, places, embedded)
            count[:, : real.shape[1]].index_add_(0, places, real)
    return total / count.clamp(min=1.0).unsqueeze(-1), count


def truncate_means(means: Tensor, count: Tensor, floor: int = 1) -> tuple[Tensor, tuple[int, ...]]:
    """Mean texts as far as ``floor`` of their texts go, and their lengths. Further on a mean would be over fewer: in
    the end over the longest text alone.
    """
    lengths = tuple(int(n) for n in (count >= floor).sum(dim=1))
    longest = max(lengths, default=0)
    return means[:, :longest] * real_positions(lengths, longest).unsqueeze(-1), lengths


def real_positions(lengths: tuple[int, ...], positions: int) -> Tensor:
    """The attention mask of mean texts."""
    return (torch.arange(positions) < torch.tensor(lengths).unsqueeze(1)).long()
