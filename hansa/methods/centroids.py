"""Groups of samples as means of what a model computes for them; shared by FedKC and FedMix.

The mean of several texts at position t is over the texts that are longer than t: padding does not enter it. It has as
many positions as the longest of the texts. Used for Equation 6 of Wang et al. (2022) and Algorithm 1 of Yoon et al.
(2021).
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hansa.core import representations
from hansa.core.errors import ConfigError
from hansa.core.knowledge import Indices, Samples
from hansa.core.learner import Learner
from hansa.methods.centroid_noise import Noise, bounded


@dataclass(frozen=True)
class Outputs:
    """What a model computes for every sample."""

    pooled: Tensor  # samples × width
    predictions: Tensor  # samples × classes


def model_outputs(learner: Learner, samples: Samples) -> Outputs:
    """The pooled outputs and predictions of all samples."""
    pooled: Tensor | None = None
    predictions: Tensor | None = None
    with torch.inference_mode():
        for indices, batch in samples.batches():
            some, logits = (seen.cpu() for seen in representations.represent(learner.model, batch.inputs))
            if pooled is None or predictions is None:
                pooled, predictions = (torch.zeros(samples.size, t.shape[1]) for t in (some, logits))
            pooled[indices], predictions[indices] = some, logits.softmax(dim=-1)
    assert pooled is not None
    assert predictions is not None
    return Outputs(pooled, predictions)


def k_means(points: NDArray[np.float32], count: int, rng: np.random.Generator) -> list[Indices]:
    """k-means (scikit-learn, one thread): the points of each of at most ``count`` clusters; none is empty."""
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits

    different = min(count, len(np.unique(points, axis=0)))  # equal points cannot lie in different clusters
    seed = int(rng.integers(1 << 31))
    with threadpool_limits(1):
        labels = KMeans(different, n_init=1, random_state=seed).fit_predict(points)
    found = [np.flatnonzero(labels == label) for label in range(different)]
    return [members for members in found if len(members)]


def require_sklearn(method: str) -> None:
    """Raise `ConfigError` if scikit-learn is not installed."""
    try:
        import sklearn  # noqa: F401
    except ImportError:
        raise ConfigError(
            f"method '{method}' clusters with scikit-learn, which is not installed: pip install 'hansa[fedkc]'"
        ) from None


def mean_rows(values: Tensor, groups: list[Indices]) -> Tensor:
    """The mean of each group's rows."""
    return torch.stack([values[torch.from_numpy(members)].mean(dim=0) for members in groups])


def mean_texts(
    learner: Learner, samples: Samples, groups: list[Indices], noise: Noise | None = None
) -> tuple[Tensor, Tensor]:
    """The mean of each group's embedded texts, and the number of texts behind each of its positions.

    The mean is over inputs of the first block (groups × positions × width); the numbers are groups × positions. A
    sample is in at most one group. Memory holds sums, not texts. With ``noise``, each vector is clipped first.
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
            embedded = bounded(representations.embed(learner.model, inputs).cpu(), noise) * real.unsqueeze(-1)
            longer = max(0, real.shape[1] - total.shape[1])
            width = embedded.shape[-1]
            total = torch.cat([total.reshape(len(groups), -1, width), torch.zeros(len(groups), longer, width)], dim=1)
            count = torch.cat([count, torch.zeros(len(groups), longer)], dim=1)
            total[:, : real.shape[1]].index_add_(0, places, embedded)
            count[:, : real.shape[1]].index_add_(0, places, real)
    return total / count.clamp(min=1.0).unsqueeze(-1), count


def truncate_means(means: Tensor, count: Tensor, floor: int = 1) -> tuple[Tensor, tuple[int, ...]]:
    """Mean texts up to the last position that at least ``floor`` texts reach, and their lengths.

    Beyond it a mean would be over fewer texts, in the end over a single one.
    """
    lengths = tuple(int(n) for n in (count >= floor).sum(dim=1))
    longest = max(lengths, default=0)
    return means[:, :longest] * real_positions(lengths, longest).unsqueeze(-1), lengths


def real_positions(lengths: tuple[int, ...], positions: int) -> Tensor:
    """The attention mask of mean texts."""
    return (torch.arange(positions) < torch.tensor(lengths).unsqueeze(1)).long()
