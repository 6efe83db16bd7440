"""The runs of `hansa reproduce instruct`: nine web sites as silos, one chat model, LoRA adapters.

Every arm trains on as many samples: central training takes ``steps`` steps, and the silos of a federation (or alone)
take as many together. Answers are cut to their first whole sentences that fit into a sample; questions whose first
sentence of an answer does not fit are left out. The dev split is cut in two by a hash of the row: learning rates are
selected on one half, the other is reported.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from hansa.config.federation import Federation
from hansa.config.file import parse
from hansa.core.seeds import derive
from hansa.data.corpora.icd10 import write_rows
from hansa.experiments.reproduce.corpora import Row, lines
from hansa.models import tokenizer
from hansa.tasks.chat import SYSTEM, TEMPLATES, USER, ChatFormat

SILOS = (
    "cancer", "diabetes-digestive-kidney", "genetics", "health-topics", "heart-lung-blood", "infections", "neurology",
    "rare-diseases", "senior-health",
)  # fmt: skip
POOLED = dict.fromkeys(("heart-lung-blood", "infections"), "heart-lung-blood and infections")  # few dev rows
SMALLEST = ("heart-lung-blood and infections", "cancer")  # the three silos with the fewest training rows
SEED = 0  # of the order in which rows of the dev split are taken
SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")


@dataclass(frozen=True)
class Size:
    """The size of the experiments."""

    steps: int  # of an arm, over all silos
    rounds: int
    batch: int
    length: int  # tokens of a sample
    answers: int  # generated for each group
    answer_length: int
    tested: int  # samples of each silo, of each half of the dev split
    seeds: int
    rates: Mapping[str, tuple[float, ...]]  # arm → the learning rates that are tried
    system: str = ""  # default: the system message of the model's own template
    lora: Mapping[str, Any] = field(default_factory=lambda: {"rank": 8, "alpha": 16, "targets": ["q_proj", "v_proj"]})
    bf16: bool = False  # the frozen base and all products in bfloat16, what is trained in float32
    published: bool = False  # the setting that was asked for: 200 steps of 8 × 128 tokens, 20 answers

    def local_steps(self, silos: int) -> int:
        """The steps of a silo in a round, so that all silos together take about ``steps`` steps over all rounds."""
        return max(1, round(self.steps / silos / self.rounds))


_RATES = {"central": (3e-4, 1e-3, 3e-3, 1e-2), "average": (1e-3, 3e-3, 1e-2, 3e-2), "alone": (1e-3, 3e-3, 1e-2)}
SIZES = {
    "smoke": Size(6, 2, 2, 240, 1, 4, 2, 1, {"central": (1e-3, 3e-3), "average": (1e-3,), "alone": (1e-3,)}),
    "small": Size(54, 3, 4, 96, 5, 32, 16, 3, _RATES, system="Answer the question briefly."),
    "medium": Size(198, 11, 8, 128, 20, 64, 40, 3, _RATES, bf16=True, published=True),
}

# Arms beside base, central and alone: the changes to plain averaging.
FEDERATED: dict[str, dict[str, Any]] = {
    "average": {},
    "exact": {"lora": {"aggregate": "exact"}},
    "FedProx": {"method": {"name": "fedprox", "mu": 0.01}},
    "DiLoCo": {"method": {"name": "diloco"}},
    "freeze A": {"lora": {"aggregate": "freeze-a"}},
    "stack": {"lora": {"aggregate": "stack"}},
}


def federation(
    arm: str,
    silos: Mapping[str, Mapping[str, str]],
    model: str,
    size: Size,
    rate: float,
    seed: int,
    template: str = "",
) -> Federation:
    """The settings of a run; ``template``: the chat template, by default that of the model's own tokenizer."""
    kind = {"base": "base", "central": "central", "alone": "per-silo"}.get(arm, "federated")
    changes = FEDERATED.get(arm, {})
    training = {
        "optimizer": "adamw",
        "lr": rate,
        "batch": size.batch,
        "clip": 1.0,
        "precision": "bf16" if size.bf16 else "float32",
    }
    local = size.local_steps(len(silos)) * size.batch
    settings: dict[str, Any] = {
        "name": "instruct",
        "kind": kind,
        "seed": seed,
        "task": {
            "name": "instruct", "answers": size.answers, "answer_length": size.answer_length, "system": size.system,
            "template": template or template_of(model),
        },
        "model": {
            "path": model, "adapt": "lora", "lora": {**size.lora, **changes.get("lora", {})},
            "dtype": "bfloat16" if size.bf16 else None,
        },
        "data": {"max_length": size.length},
        "silos": silos,
        "method": changes.get("method", "fedavg"),
        "rounds": size.rounds,
        "train": training | {"samples": {"floor": local, "replace": False}},
        "baseline": training | {"keep_optimizer": True},
        "evaluate": {"every": size.rounds, "share": 1.0, "batch": 20},
        "checkpoint": {"every": 1},
    }  # fmt: skip
    return parse(settings)


@cache
def template_of(model: str) -> str:
    """The chat template of a model's own tokenizer; 'chatml' if it has none."""
    return str(tokenizer.load(model).chat_template or "chatml")


# ── data ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def lay_out(data: Path, folder: Path, model: str, size: Size) -> dict[str, dict[str, str]]:
    """Write train, valid and test files of every silo from medquad; return the silos' sources."""
    room = _room(model, size)
    splits: dict[str, dict[str, list[Row]]] = {name: {"train": [], "valid": [], "test": []} for name in SILOS}
    for split in ("train", "dev"):
        for row in lines(data / "medquad" / f"{split}.jsonl.gz"):
            answer = room(row["question"], row["answer"])
            if answer:
                kept = {"question": row["question"], "answer": answer, "silo": row["silo"]}
                splits[row["silo"]][split if split == "train" else half(row)].append(kept)
    for some in splits.values():
        for part in ("valid", "test"):
            ordered = sorted(some[part], key=lambda row: derive(SEED, row["question"], row["answer"], "order"))
            some[part] = ordered[: size.tested]
    return _write(splits, folder)


def half(row: Row) -> str:
    """The half of the dev split that a row is in: ``valid`` (to select settings) or ``test`` (to report)."""
    return "valid" if derive(SEED, row["question"], row["answer"], "half") % 2 else "test"


def generate(folder: Path) -> dict[str, dict[str, str]]:
    """The same layout from a few generated questions, for a test that takes seconds."""
    splits: dict[str, dict[str, list[Row]]] = {}
    for name in SILOS[:3]:
        rows = [
            {"question": f"What is {name} number {i} ?", "answer": f"It is number {i}.", "silo": name}
            for i in range(20)
        ]
        splits[name] = {"train": rows[4:], "valid": rows[:2], "test": rows[2:4]}
    return _write(splits, folder)


def first_sentences(text: str, fits: Callable[[str], bool]) -> str:
    """The longest beginning of a text, in whole sentences, that fits; empty if its first sentence does not."""
    kept = ""
    for sentence in SENTENCE.split(text.strip()):
        longer = f"{kept} {sentence}".strip()
        if not fits(longer):
            break
        kept = longer
    return kept


def _room(model: str, size: Size) -> Callable[[str, str], str]:
    """A function of a question and an answer: the beginning of the answer that fits into a sample with the question."""
    words = tokenizer.load(model)
    chat = ChatFormat(words, TEMPLATES.get(template_of(model), template_of(model)))
    system = [{"role": SYSTEM, "content": size.system}] if size.system else []

    def cut(question: str, answer: str) -> str:
        """The first whole sentences of an answer that fit into a sample beside the question; may be empty."""
        asked = len(chat.prompt([*system, {"role": USER, "content": question}]))
        spare = size.length - asked - 3  # the markers at the end of the answer
        return first_sentences(answer, lambda text: len(words(text, add_special_tokens=False)["input_ids"]) <= spare)

    return cut


def _write(splits: Mapping[str, Mapping[str, list[Row]]], folder: Path) -> dict[str, dict[str, str]]:
    silos = {}
    for name, some in splits.items():
        files = dict(_files(folder, name, some))
        silos[name] = files | {
            "language": "en", "domain": POOLED.get(name, name), "text": "question", "target": "answer",
        }  # fmt: skip
    return silos


def _files(folder: Path, name: str, some: Mapping[str, list[Row]]) -> Iterator[tuple[str, str]]:
    for split, rows in some.items():
        file = folder / f"{name}.{split}.jsonl"
        write_rows(file, rows)
        yield split, str(file.resolve())
