"""The trees of WorldLM's experiments, written from real text, and the small model that all runs start from.

Four languages, four genres of one language, or four equal parts of one language.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import transformers

from hansa.core.seeds import stream
from hansa.data.corpora import clinical_notes as generator
from hansa.data.corpora import icd10
from hansa.experiments.reproduce.corpora import Row, lines
from hansa.models.tokenizer import count_pieces, train_vocabulary

LANGUAGES = ("fr", "it", "uk", "bg")
GENRES = ("web", "phrases", "abstracts", "journal")
PARTS = ("one", "two", "three", "four")
# Training texts of the language leaves, ordered by size as in the paper's Table 7 but less skewed. `everything` (the
# models with unbounded data) uses all texts.
TEXTS = {"fr": 26_000, "it": 13_000, "uk": 2_500, "bg": 5_000}
TESTED = 150  # test texts of each source
Splits = dict[str, list[Row]]


@dataclass(frozen=True)
class Layout:
    """Leaves with their sources, in two regions."""

    regions: Mapping[str, Sequence[str]]
    sources: Mapping[str, dict[str, str]]

    @property
    def leaves(self) -> list[str]:
        """The names of all leaves."""
        return [leaf for region in self.regions.values() for leaf in region]

    def swapped(self) -> "Layout":
        """A wrong tree: the second leaves of the two regions are exchanged."""
        (one, (a, b)), (two, (c, d)) = self.regions.items()
        return Layout({one: (a, d), two: (c, b)}, self.sources)

    def tree(self, own: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """The settings ``silos`` and ``root``; inner nodes hold mixtures of their leaves. ``own``: leaf → settings."""
        silos = {
            region: {"mixture": True, "silos": {leaf: {**self.sources[leaf], **own.get(leaf, {})} for leaf in leaves}}
            for region, leaves in self.regions.items()
        }
        return {"silos": silos, "root": "mixture"}

    def flat(self, own: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """The same seven nodes as silos of one server."""
        inner = {"all": self.leaves, **self.regions}
        mixtures = {name: {"sources": [self.sources[leaf] for leaf in leaves]} for name, leaves in inner.items()}
        return {"silos": mixtures | {leaf: {**self.sources[leaf], **own.get(leaf, {})} for leaf in self.leaves}}

    def pooled(self) -> dict[str, Any]:
        """All data at one node."""
        return {"silos": {"all": {"sources": [self.sources[leaf] for leaf in self.leaves]}}}

    def local(self) -> dict[str, Any]:
        """The leaves as silos."""
        return {"silos": {leaf: self.sources[leaf] for leaf in self.leaves}}


def lay_out(data: Path | None, folder: Path) -> dict[str, Layout]:
    """Write the texts of every leaf; return the layouts by name."""
    texts = _real(data) if data is not None else _generated()
    layouts = {}
    for name, leaves in texts.items():
        sources = {leaf: _write(folder / name, leaf, splits) for leaf, splits in leaves.items()}
        names = list(sources)
        layouts[name] = Layout({"west": names[:2], "east": names[2:]}, sources)
    return layouts


def _write(folder: Path, leaf: str, splits: Splits) -> dict[str, str]:
    found = {"language": leaf}
    for split, rows in splits.items():
        file = folder / f"{leaf}.{split}.jsonl"
        icd10.write_rows(file, rows)
        found[split] = str(file.resolve())
    return found


def _real(data: Path) -> dict[str, dict[str, Splits]]:
    languages: dict[str, Splits] = {leaf: {"train": [], "test": []} for leaf in LANGUAGES}
    genres: dict[str, Splits] = {leaf: {"train": [], "test": []} for leaf in GENRES}
    for split, part in (("train", "train"), ("dev", "test")):
        for row in lines(data / "mlm_text" / f"{split}.jsonl.gz"):
            if row["lang"] in languages:
                languages[row["lang"]][part].append({"text": row["text"]})
            if row["lang"] == "en":
                genres["phrases" if row["source"] == "tatoeba" else "web"][part].append({"text": row["text"]})
        for row in lines(data / "med_text_e3c" / f"{split}.jsonl.gz"):
            if row["lang"] == "en":
                genres["journal" if row["type"] == "journal" else "abstracts"][part].append({"text": row["text"]})
    everything = {leaf: _shuffled(leaf, splits) for leaf, splits in languages.items()}
    limited = {leaf: {**splits, "train": splits["train"][: TEXTS[leaf]]} for leaf, splits in everything.items()}
    return {
        "languages": limited,
        "everything": everything,
        "genres": {leaf: _shuffled(leaf, splits) for leaf, splits in genres.items()},
        "iid": _parts(everything["fr"]),
    }


def _shuffled(leaf: str, splits: Splits) -> Splits:
    """In random order, so that the first rows are a random sample."""
    found = {}
    for split, rows in splits.items():
        order = stream(0, leaf, split, "layout").permutation(len(rows))
        found[split] = [rows[i] for i in order[: TESTED if split == "test" else None]]
    return found


def _parts(splits: Splits) -> dict[str, Splits]:
    """One language in four equal parts with the same test texts."""
    return {
        part: {"train": splits["train"][number :: len(PARTS)], "test": splits["test"]}
        for number, part in enumerate(PARTS)
    }


def _generated() -> dict[str, dict[str, Splits]]:
    """The same layouts from a few generated notes, for a test that takes seconds."""

    def splits(code: str, seed: int) -> Splits:
        notes = [{"text": note["text"]} for note in generator.notes(code, 16, seed=seed, sentences=(1, 1))]
        return {"train": notes[3:], "test": notes[:3]}

    languages = {leaf: splits(leaf, 1) for leaf in LANGUAGES}
    return {
        "languages": languages,
        "everything": languages,
        "genres": {leaf: splits("en", seed) for seed, leaf in enumerate(GENRES)},
        "iid": _parts(splits("fr", 2)),
    }


def shape(folder: Path, texts: Sequence[Row], vocabulary: int, length: int, blocks: int, width: int) -> str:
    """Write a tokenizer and a model configuration to ``folder``; every run draws its weights from its own seed."""
    pieces, _ = count_pieces(((None, [row["text"]]) for row in texts), 2)
    words = train_vocabulary(pieces, vocabulary)
    config = transformers.LlamaConfig(
        vocab_size=len(words),
        hidden_size=width,
        num_hidden_layers=blocks,
        num_attention_heads=max(2, width // 32),
        intermediate_size=4 * width,
        max_position_embeddings=max(64, length),
        tie_word_embeddings=True,
        pad_token_id=words.pad_token_id,
        bos_token_id=words.bos_token_id,
        eos_token_id=words.eos_token_id,
    )
    words.save_pretrained(folder)
    config.save_pretrained(folder)
    return str(folder.resolve())
