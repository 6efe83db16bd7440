"""The trees of WorldLM's experiments, written from real text, and the small model that all runs start from.

Four languages, four genres of one language, or four equal parts of one language. Iacob et al. (2024), appendix A.2:
each source is cut into equal shards, which are dealt out, three to its leaf and two to each level above. So a region
and the root train on text of the languages below them that no leaf holds, and no node reads another node's text.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import transformers

from hansa.core.seeds import derive, stream
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
SHARDS = {"leaf": 3, "region": 2, "root": 2}  # of the seven equal shards of a source: how many each level holds
TESTED = 350  # test texts of each source at most; they are dealt out too: 150 to its leaf
Splits = dict[str, list[Row]]
Sources = Mapping[str, dict[str, str]]  # level → the files of a source's shards there


@dataclass(frozen=True)
class Layout:
    """Leaves in two regions. ``sources``: leaf → the shards of its source, by the level that holds them."""

    regions: Mapping[str, Sequence[str]]
    sources: Mapping[str, Sources]

    @property
    def leaves(self) -> list[str]:
        """The names of all leaves."""
        return [leaf for region in self.regions.values() for leaf in region]

    def swapped(self) -> "Layout":
        """A wrong tree: the second leaves of the two regions are exchanged."""
        (one, (a, b)), (two, (c, d)) = self.regions.items()
        return Layout({one: (a, d), two: (c, b)}, self.sources)

    def tree(self, own: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """The settings ``silos`` and ``root``; every node holds shards of its own. ``own``: leaf → settings."""
        silos = {
            region: {**self._shards("region", leaves), "silos": {leaf: self._leaf(leaf, own) for leaf in leaves}}
            for region, leaves in self.regions.items()
        }
        return {"silos": silos, "root": self._shards("root", self.leaves)}

    def flat(self, own: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """The same seven nodes as silos of one server."""
        inner = {region: self._shards("region", leaves) for region, leaves in self.regions.items()}
        leaves = {leaf: self._leaf(leaf, own) for leaf in self.leaves}
        return {"silos": {"all": self._shards("root", self.leaves)} | inner | leaves}

    def pooled(self) -> dict[str, Any]:
        """All data at one node, tested on the leaves' test texts."""
        return {"silos": {"all": {"sources": [shard for leaf in self.leaves for shard in self._whole(leaf)]}}}

    def local(self) -> dict[str, Any]:
        """The leaves as silos, each with all shards of its source."""
        return {"silos": {leaf: {"sources": self._whole(leaf)} for leaf in self.leaves}}

    def _leaf(self, leaf: str, own: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        return {**self.sources[leaf]["leaf"], **own.get(leaf, {})}

    def _shards(self, level: str, leaves: Sequence[str]) -> dict[str, Any]:
        """What an inner node holds; its scores are grouped apart from those on the leaves' test texts."""
        return {"sources": [{**self.sources[leaf][level], "domain": f"{leaf} at {level}"} for leaf in leaves]}

    def _whole(self, leaf: str) -> list[dict[str, str]]:
        """All training texts of a source; the test texts of its leaf."""
        shards = self.sources[leaf]
        scored = ("valid", "test")
        others = ({k: v for k, v in shards[level].items() if k not in scored} for level in SHARDS if level != "leaf")
        return [shards["leaf"], *others]


def lay_out(data: Path | None, folder: Path) -> dict[str, Layout]:
    """Write the texts of every leaf; return the layouts by name."""
    texts = _real(data) if data is not None else _generated()
    layouts = {}
    for name, leaves in texts.items():
        sources = {leaf: _write(folder / name, leaf, splits) for leaf, splits in leaves.items()}
        names = list(sources)
        layouts[name] = Layout({"west": names[:2], "east": names[2:]}, sources)
    return layouts


def halves(data: Path | None, folder: Path, texts: int, tested: int) -> Layout:
    """The languages alone, with dev cut in two by a hash of the row: `valid` selects settings, `test` is reported.

    ``texts``: training texts of each source at most; ``tested``: texts of each source in each half at most.
    """
    found = {}
    for leaf, splits in (_real(data) if data is not None else _generated())["languages"].items():
        parts: Splits = {"train": splits["train"][:texts], "valid": [], "test": []}
        if data is None:  # too few rows to be cut: every node needs some of each half
            parts |= {"train": splits["train"][7:], "valid": splits["train"][:7], "test": splits["test"]}
        for row in splits["test"] if data is not None else []:
            parts["valid" if derive(0, row["text"], "half") % 2 else "test"].append(row)
        cut = {part: rows if part == "train" else rows[:tested] for part, rows in parts.items()}
        found[leaf] = _write(folder, leaf, cut)
    names = list(found)
    return Layout({"west": names[:2], "east": names[2:]}, found)


def _write(folder: Path, leaf: str, splits: Splits) -> dict[str, dict[str, str]]:
    """Deal a source out to the levels of the tree and write the files; row i belongs to shard i mod 7."""
    found, first, count = {}, 0, sum(SHARDS.values())
    for level, shards in SHARDS.items():
        files = {"language": leaf}
        for split, rows in splits.items():
            file = folder / f"{leaf}.{level}.{split}.jsonl"
            icd10.write_rows(file, [row for i, row in enumerate(rows) if first <= i % count < first + shards])
            files[split] = str(file.resolve())
        found[level], first = files, first + shards
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
    """One language in four equal parts with the same test texts, each dealt out as a source of its own."""
    return {
        part: {"train": splits["train"][number :: len(PARTS)], "test": splits["test"]}
        for number, part in enumerate(PARTS)
    }


def _generated() -> dict[str, dict[str, Splits]]:
    """The same layouts from a few generated notes, for a test that takes seconds."""

    def splits(code: str, seed: int) -> Splits:
        """Generated notes of one language: 35 for training and 7 for the test."""
        notes = [{"text": note["text"]} for note in generator.notes(code, 42, seed=seed, sentences=(1, 1))]
        return {"train": notes[7:], "test": notes[:7]}

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
