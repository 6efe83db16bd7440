"""The weighted sum of ten updates of 100M parameters, against a plain copy of the same bytes (torch's copy_)."""

import psutil
import torch
from _figures import Figures, best_of

from hansa.core.tensors import Layout, Tensors, WeightedMean

PARAMETERS, SMOKE, UPDATES = 100_000_000, 100_000, 10


def main() -> None:
    figures = Figures.from_arguments()
    parameters = SMOKE if figures.smoke else PARAMETERS
    layout = Layout(("w",), ((parameters,),))
    update = Tensors(layout, torch.randn(parameters))
    target = torch.empty(parameters)
    copy = best_of(5, lambda: target.copy_(update.flat))

    process = psutil.Process()
    before = process.memory_info().rss
    mean = WeightedMean(layout)
    largest = 0

    def add_all() -> None:
        nonlocal largest
        for number in range(UPDATES):
            mean.add(update, 0.1 * (number + 1))
            largest = max(largest, process.memory_info().rss)

    add_all()  # touch the sum's pages once
    add = best_of(5, add_all) / UPDATES
    size = 4 * parameters
    print(f"copy {size / copy / 1e9:.1f} GB/s, weighted sum {size / add / 1e9:.1f} GB/s of updates taken in")
    figures.add(
        "aggregate_bandwidth_vs_copy",
        "weighted sum of 100M-parameter updates against a memory copy",
        copy / add,
        "ratio",
        ">=",
        0.5,
    )
    figures.add("aggregate_memory_in_models", "memory of that sum", (largest - before) / size, "models", "<=", 1.1)
    figures.end()


if __name__ == "__main__":
    main()
