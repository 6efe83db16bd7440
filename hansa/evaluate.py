"""Score a model on samples, language by language. The questions (masks, subset) come from the seed, so that every model
and every round is asked the same."""

import numpy as np
import torch
from torch import nn

from hansa.data.examples import Examples
from hansa.data.sampling import batches
from hansa.messages import Scores
from hansa.seeds import stream
from hansa.tasks.base import Task, Vocabulary


def evaluate(
    model: nn.Module,
    task: Task,
    examples: Examples,
    vocabulary: Vocabulary,
    seed: int,
    share: float = 1.0,
    batch_size: int = 64,
) -> Scores:
    if model.training:
        model.eval()
    total = Scores({})
    with torch.inference_mode():
        for number, group in enumerate(examples.groups):
            mine = np.flatnonzero(examples.group == number)
            if share < 1.0 and len(mine):
                keep = max(1, round(share * len(mine)))
                mine = np.sort(stream(seed, group, "share").permutation(mine)[:keep])
            rng = stream(seed, group, "questions")
            for indices in batches(mine, examples.lengths, batch_size, None):
                sums = task.score(model, task.batch(examples, indices, rng, vocabulary))
                total = total + Scores({group: sums})
    return total
