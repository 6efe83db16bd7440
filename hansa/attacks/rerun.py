"""Run a finished federation again with something changed: other rows at one silo, a defence more or less.

The new run starts from the old one's start (tokenizer, labels, weights), so that nothing else differs.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hansa.client.runtime import Runtime
from hansa.config.federation import Federation
from hansa.config.nodes import Node, leaves
from hansa.core.errors import UserError
from hansa.core.settings import Named
from hansa.data.rows import Problems
from hansa.data.source import Source
from hansa.data.splits import rows
from hansa.models.settings import Model, Tokenizer
from hansa.runs.run import run

Rows = list[dict[str, Any]]


def same_start(runtime: Runtime) -> Federation:
    """The federation of a run, which starts from the run's own start and checkpoints at its end only."""
    federation, start = runtime.federation, str((runtime.folder / "start").resolve())
    kept = federation.model
    model = kept if kept.keeps_base else Model(path=start, adapt=kept.adapt, lora=kept.lora)
    task = federation.task
    if runtime.vocabulary.labels and task.name == "classify":
        task = Named(name=task.name, **(task.settings | {"labels": runtime.vocabulary.labels}))
    rounds = max(1, federation.rounds)
    changed = {
        "name": "audit",
        "task": task,
        "model": model,
        "tokenizer": Tokenizer(),
        "evaluate": federation.evaluate.model_copy(update={"every": rounds}),
        "checkpoint": federation.checkpoint.model_copy(update={"every": rounds}),
    }
    return federation.model_copy(update=changed)


def split_rows(runtime: Runtime, name: str, split: str) -> Rows:
    """The rows of a split of a silo's first source."""
    source = _source(runtime, name)
    return [dict(row) for row in rows(source, split, runtime.federation.data, Problems())]


def with_rows(runtime: Runtime, name: str, folder: Path, change: Callable[[Rows, Source], Rows]) -> Node:
    """The node of a silo with changed training rows; its validation and test rows stay the same.

    ``folder``: where the rows are written, with the confidentiality of the silo's data.
    """
    node, source = leaves(runtime.federation.silos)[name], _source(runtime, name)
    folder.mkdir(parents=True, exist_ok=True)
    files = {}
    for split in ("train", "valid", "test"):
        found = split_rows(runtime, name, split)
        if split == "train":
            found = change(found, source)
        if found:
            files[split] = str(write(folder / f"{split}.jsonl", found))
    kept = {"language", "domain", "text", "second", "label", "target", "target_language"}
    own = Source(**(source.model_dump(include=kept) | files))
    return node.model_copy(update={"sources": (own, *node.sources[1:])})


def write(file: Path, found: Sequence[dict[str, Any]]) -> Path:
    """Write rows as JSON Lines; return the file."""
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in found), encoding="utf-8")
    return file


def run_again(federation: Federation, folder: Path) -> Path:
    """Run in this process; return the run directory."""
    return run(federation, folder, workers=0).folder


def whole_words(runtime: Runtime) -> list[str]:
    """The words of the vocabulary that are one token each, also behind another word."""
    vocabulary, found = runtime.vocabulary, list[str]()
    for token in np.flatnonzero(vocabulary.starts & ~vocabulary.special):
        word = str(vocabulary.tokenizer.decode([int(token)])).strip()
        twice = vocabulary.tokenizer(f"{word} {word}", add_special_tokens=False)["input_ids"]
        if len(word) > 1 and word.isalpha() and len(twice) == 2:
            found.append(word)
    return found


def _source(runtime: Runtime, name: str) -> Source:
    node = leaves(runtime.federation.silos)[name]
    if not node.sources or node.sources[0].aligned is not None:
        raise UserError(f"silo '{name}' has no rows of its own that an audit could change; choose another --silo")
    return node.sources[0]
