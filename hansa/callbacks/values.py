"""What trackers store of a run: the values of the ledger under stable names."""

from collections.abc import Iterator

from hansa.config.federation import Federation
from hansa.config.file import without_folders
from hansa.runs.callbacks import Evaluation, Metrics, RoundRecord


def round_values(record: RoundRecord) -> dict[str, float]:
    """Of a round: training loss over all silos and of each, seconds, bytes, silos that dropped out."""
    found = {
        "train/loss": record.loss,
        "round/seconds": record.seconds,
        "round/bytes_down": float(sum(record.bytes_down.values())),
        "round/bytes_up": float(sum(record.bytes_up.values())),
        "round/lost": float(len(record.failures)),
    }
    return found | {f"silos/{silo}/train/loss": loss for silo, loss in record.losses.items()}


def score_values(scores: Evaluation) -> dict[str, float]:
    """Of an evaluation: ``SPLIT/LANGUAGE/METRIC``, and ``silos/SILO/SPLIT/LANGUAGE/METRIC`` for each silo.

    Scores of nodes' own models begin with ``own``; those on a part of the test data are ``test sample``.
    """
    split = "test sample" if scores.split == "test" and scores.share < 1.0 else scores.split
    split = f"own {split}" if scores.own else split
    found = {f"{split}/{name}": value for name, value in _flat(scores.metrics)}
    for silo, metrics in scores.silos.items():
        found |= {f"silos/{silo}/{split}/{name}": value for name, value in _flat(metrics)}
    return found


def _flat(metrics: Metrics) -> Iterator[tuple[str, float]]:
    for group, values in metrics.items():
        for metric, value in values.items():
            yield f"{group}/{metric}", value


def settings_values(federation: Federation) -> dict[str, str]:
    """The settings of a run as flat names and texts; of paths only the names of files, which tell less."""
    found: dict[str, str] = {}

    def walk(prefix: str, value: object) -> None:
        """Add a nested value to ``found``, with the keys on the way to it joined by dots."""
        if isinstance(value, dict):
            for key, one in value.items():
                walk(f"{prefix}.{key}" if prefix else str(key), one)
        else:
            found[prefix] = str(value)

    walk("", without_folders(federation).model_dump(mode="json", exclude_defaults=True))
    return found
