"""FedKC's exchange as a share of a round at the paper's settings.

Two local epochs, ten clusters, two active clients, encoder 4 × 256, texts of 64 tokens.
"""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path

from _federations import silos, words
from _figures import Figures

from hansa.config.file import parse
from hansa.runs.ledger import Ledger
from hansa.runs.run import run

SILOS, ROWS, LENGTH, ROUNDS = 2, 96, 64, 2


def labelled(folder: Path, count: int) -> dict[str, str]:
    files = silos(folder, SILOS, count, LENGTH, words(2000))
    for file in map(Path, files.values()):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        texts = (json.dumps(row | {"label": i % 2}) + "\n" for i, row in enumerate(rows))
        file.write_text("".join(texts))
    return files


def seconds(folder: Path, files: dict[str, str], method: Mapping[str, object]) -> tuple[float, float]:
    """The shortest exchange and the shortest whole round."""
    federation = parse(
        {
            "name": "bench",
            "task": "classify",
            "model": "small",
            "tokenizer": {"size": 4000, "min_count": 1},
            "data": {"max_length": LENGTH, "valid": 0.0, "test": 0.0},
            "silos": files,
            "method": method,
            "rounds": ROUNDS,
            "train": {"optimizer": "adamw", "lr": 1e-4, "batch": 16, "samples": {"epochs": 2}},
        }
    )
    ledger = Ledger(run(federation, folder, workers=0).folder)
    found = ledger.select("select trade_seconds, trade_seconds + work_seconds + move_seconds from rounds")
    ledger.close()
    return min(trade for trade, _ in found), min(whole for _, whole in found)


def main() -> None:
    figures = Figures.from_arguments()
    rows = 24 if figures.smoke else ROWS
    with tempfile.TemporaryDirectory() as place:
        files = labelled(Path(place) / "data", rows)
        _, plain = seconds(Path(place) / "fedavg", files, {"name": "fedavg"})
        for layer in ("last", "all"):
            kc = {"name": "fedkc", "layer": layer, "q": 10, "floor": 1}
            trade, whole = seconds(Path(place) / layer, files, kc)
            print(
                f"{layer}: exchange {trade:.2f} s of {whole:.2f} s; FedAvg's round {plain:.2f} s ({whole / plain:.2f}×)"
            )
            what = f"FedKC's exchange ({layer} layer{'s' * (layer == 'all')}), of a round at the paper's settings"
            figures.add(f"exchange_share_{layer}", what, 100 * trade / whole, "percent", "<=", 25)
    figures.end()


if __name__ == "__main__":
    main()
