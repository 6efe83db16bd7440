"""The runs of `hansa reproduce medical`: their sizes and settings."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hansa.config.federation import Federation
from hansa.config.file import parse

DRAWS = 4  # maskings of every text in the comparison of personal models, which differ by a few tokens in a thousand


@dataclass(frozen=True)
class Size:
    """The size of the experiments. Learning rates were tuned separately, by mean perplexity on validation data."""

    base_samples: int
    rounds: int
    batch: int
    length: int
    vocabulary: int
    server_lr: float
    temperature: float  # the weight of a silo with N samples is N^temperature
    central_lr: float
    own_lr: float
    personal_rounds: int
    personal_lr: float
    epochs: int  # of fine-tuning
    limit: int  # rows of assertion and relation data
    tries: int = 1  # seeds of the fine-tuning for entities: single ones differ by points of F1
    preset: str = "tiny"
    published: bool = False  # the paper's settings, on all text


SIZES: dict[str, Size] = {
    "smoke": Size(600, 6, 4, 24, 1200, 2e-3, 0.5, 1e-3, 1e-3, 2, 1e-3, 1, 200),
    "small": Size(184_000, 2800, 4, 32, 2500, 1e-3, 0.35, 1e-5, 5e-4, 100, 2e-4, 3, 1500, 3),
    "medium": Size(600_000, 8000, 4, 48, 4000, 1e-3, 0.35, 3e-5, 5e-4, 200, 2e-4, 4, 5000, 3),
    "full": Size(20_000_000, 1000, 2048, 128, 32_000, 3e-4, 1.0, 3e-5, 3e-5, 50, 3e-5, 4, 1_000_000, 3, "base", True),
}


PRIVATE = "eu"  # Table 5: the silo whose text central training cannot have; English where there is no such silo
# Weights of the silos, and samples of a silo with N samples in a round: max(floor, fraction·N). The published rule, and
# the one that its authors rejected because it over-represents English, are for batches of up to 2,048 samples.
RULES: dict[str, dict[str, Any]] = {
    "N/ΣN, our rounds": {"temperature": 1.0},
    "N/ΣN, max(500, 0.8e-4·N)": {"temperature": 1.0, "floor": 500, "fraction": 0.8e-4},
    "N/ΣN, max(100, 1e-4·N)": {"temperature": 1.0, "floor": 100, "fraction": 1e-4},
}


# Tables 1 and 2 of the paper.
PUBLISHED_SETTINGS: dict[str, Any] = {
    "train": {"optimizer": "sgd", "lr": 1e-4, "batch": 2048, "samples": {"floor": 500, "fraction": 0.8e-4}},
    "server": {"optimizer": "adam", "lr": 3e-4, "schedule": {"kind": "linear", "decay": 1e-3}},
    "aggregate": {"weights": "samples"},
    "evaluate": {"every": 5, "share": 0.1},
}


def snapshot(folder: Path, languages: list[str], size: Size) -> Federation:
    """The general-domain model that all runs start from: trained centrally, with a vocabulary of the same text."""
    rounds = 12
    each = max(1, size.base_samples // rounds // len(languages))
    return parse(
        {
            "name": "snapshot",
            "kind": "central",
            "model": size.preset,
            "tokenizer": {"size": size.vocabulary, "min_count": 2},
            "data": {"max_length": 2 * size.length, "valid": 0.0, "test": 0.005 if size.base_samples > 10_000 else 0.1},
            "silos": {
                code: {"train": str((folder / "general" / f"{code}.jsonl").resolve()), "language": code}
                for code in languages
            },
            "rounds": rounds,
            "train": {"samples": {"floor": each}},
            "baseline": {"optimizer": "adamw", "lr": 1e-3, "batch": 32, "keep_optimizer": True, "schedule": "linear"},
            "evaluate": {"every": 1, "share": 1.0},
        }
    )


def by_rule(rule: str, silos: dict[str, dict[str, str]], size: Size, path: str, seed: int = 0) -> Federation:
    """The settings of the federation with other weights or another number of samples per round, on as many samples."""
    changes = RULES[rule]
    made = federation("federated", silos, size, path, personal=False, seed=seed)
    weights = {"weights": {"by": "samples", "temperature": changes["temperature"]}}
    settings = made.model_dump() | {"aggregate": weights}
    if "floor" in changes:
        floor = min(changes["floor"], size.rounds * size.batch)
        rounds = max(1, size.rounds * size.batch // floor)
        samples = {"floor": floor, "fraction": changes["fraction"]}
        batches = {"batch": min(2048, floor), "micro_batch": min(32, floor), "samples": samples}
        settings |= {"rounds": rounds, "train": made.train.model_dump() | batches}
        settings |= {"evaluate": made.evaluate.model_dump() | {"every": rounds}, "checkpoint": {"every": rounds}}
    return parse(settings)


def federation(
    kind: str,
    silos: dict[str, dict[str, str]],
    size: Size,
    path: str,
    share: float = 1.0,
    personal: bool = True,
    seed: int = 0,
) -> Federation:
    """The settings of a run: few local batches, many rounds, tempered weights, which show the paper's results.

    ``share``: central training uses this many samples for each sample of the federation.
    """
    adamw = {
        "optimizer": "adamw",
        "eps": 1e-6,
        "weight_decay": 0.01,
        "batch": min(2048, 4 * size.batch),
        "keep_optimizer": True,
        "by_length": False,  # the paper: batches "not stratified per language"; sorted by length they would be
    }
    rounds = max(1, round(share * size.rounds)) if kind == "central" else size.rounds
    every = max(1, rounds // 10)
    settings: dict[str, Any] = {
        "name": kind,
        "kind": kind,
        "seed": seed,
        "model": {"path": path},
        "data": {"max_length": size.length},
        "silos": silos,
        "rounds": rounds,
        "train": {"optimizer": "sgd", "lr": 0.1, "batch": size.batch, "samples": {"floor": size.batch}},
        "server": {"optimizer": "adam", "lr": size.server_lr, "schedule": "linear"},
        "aggregate": {"weights": {"by": "samples", "temperature": size.temperature}},
        "baseline": adamw | {"lr": size.central_lr if kind == "central" else size.own_lr, "schedule": "linear"},
        "personal": {
            "rounds": size.personal_rounds,
            "train": adamw | {"lr": size.personal_lr, "batch": size.batch},
            "nearby": 2,
            "draws": DRAWS,
        }
        if personal
        else None,
        "evaluate": {"every": every, "share": 0.5},
        "checkpoint": {"every": every},
    }
    return parse(settings | PUBLISHED_SETTINGS if size.published else settings)
