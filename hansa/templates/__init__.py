"""`hansa new`: a federation file and generated data, ready to run."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hansa.core.errors import UserError, did_you_mean
from hansa.core.seeds import stream
from hansa.data.corpora import clinical_notes as generator
from hansa.data.corpora import phrases

FOLDER = Path(__file__).parent
# Texts per silo, skewed like Table 1 of the Medical paper: the smallest language has a hundredth of the largest.
SIZES = {"en": 3000, "de": 400, "es": 350, "fr": 330, "it": 300, "pt": 280, "ru": 80, "ar": 60, "he": 40}

CLIENTS, PER_CLIENT = {"en": 6, "de": 2, "es": 2, "fr": 2}, 300  # pairs: monolingual clients with a dominant language
TREE = {"fr": 900, "it": 700, "bg": 600, "uk": 500}  # worldlm: two regions of two languages each
# Of seven equal shards of a language, how many each level of the tree holds (Iacob et al., 2024, appendix A.2).
SHARDS = {"": 3, "-region": 2, "-root": 2}


def templates() -> list[str]:
    """The names of all templates."""
    return sorted(file.stem for file in FOLDER.glob("*.yaml") if "." not in file.stem)


def new(template: str, folder: Path, seed: int = 0) -> Path:
    """Write a template and its data to a new folder; return the federation file.

    Raises `UserError` for a template that is not known, and for a folder that is not empty.
    """
    if template not in templates():
        raise UserError(f"template '{template}' is not known; {did_you_mean(template, templates())}")
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty; choose a new folder")
    (folder / "data").mkdir(parents=True)
    sources = WRITERS[template](seed) if template in WRITERS else notes(template, seed)
    lines = []
    for name, (settings, rows) in sources.items():
        with (folder / "data" / f"{name}.jsonl").open("w", encoding="utf-8") as stream:
            stream.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        lines.append(f"  {name}: {{train: data/{name}.jsonl, {settings}}}")
    silos = "\n".join(lines)
    for source in FOLDER.glob(f"{template}*.yaml"):
        variant = source.stem.partition(".")[2] or "federation"  # medical.small.yaml becomes small.yaml
        text = source.read_text(encoding="utf-8").replace("@SILOS@", silos)
        (folder / f"{variant}.yaml").write_text(text, encoding="utf-8")
    return folder / "federation.yaml"


Sources = dict[str, tuple[str, Iterator[dict[str, Any]]]]  # silo → settings of its source, and its rows


def notes(template: str, seed: int) -> Sources:
    """One silo per language with generated clinical notes."""
    write = assertions if template in ("classify", "lora") else generator.notes
    return {language: (f"language: {language}", write(language, count, seed)) for language, count in SIZES.items()}


def shards(seed: int) -> Sources:
    """Generated clinical notes of four languages, dealt out to a leaf, its region and the root: no two nodes share any.

    Note i of a language belongs to shard i mod 7.
    """
    found: Sources = {}
    for language, size in TREE.items():
        rows, first = list(generator.notes(language, size, seed)), 0
        for level, count in SHARDS.items():
            dealt = [row for i, row in enumerate(rows) if first <= i % sum(SHARDS.values()) < first + count]
            found[language + level] = (f"language: {language}", iter(dealt))
            first += count
    return found


def translations(seed: int) -> Sources:
    """One silo per domain with generated sentence pairs."""
    fields = "text: src, target: tgt, language: de, target_language: en"
    return {domain: (fields, phrases.pairs(domain, count, seed)) for domain, count in phrases.SIZES.items()}


def matches(seed: int) -> Sources:
    """Pairs of a finding and a sentence by language, labelled with whether the sentence mentions the finding."""
    return {
        language: (
            f"text: finding, second: sentence, language: {language}, clients: {clients}",
            _matches(language, seed),
        )
        for language, clients in CLIENTS.items()
    }


def _matches(language: str, seed: int) -> Iterator[dict[str, Any]]:
    mentions = [
        (note["text"], note["text"][slice(*entity["span"])])
        for number in range(PER_CLIENT * CLIENTS[language])
        for note in [generator.note(language, number, seed, (1, 1))]
        for entity in note["entities"][:1]
    ]
    rng = stream(seed, language, "matches")
    for sentence, finding in mentions:
        other = mentions[int(rng.integers(len(mentions)))][1]
        match = bool(rng.integers(2)) or other in sentence
        found = finding if match else other
        yield {"finding": found, "sentence": sentence, "label": "yes" if match else "no", "lang": language}


QUESTIONS = {"en": 400, "de": 200, "es": 150, "fr": 100}  # instruct: conversations per silo


def conversations(seed: int) -> Sources:
    """Two questions and answers about a generated sentence, by language."""
    return {
        language: (f"language: {language}", _conversations(language, count, seed))
        for language, count in QUESTIONS.items()
    }


def _conversations(language: str, count: int, seed: int) -> Iterator[dict[str, Any]]:
    found, number = 0, 0
    while found < count:
        note = generator.note(language, number, seed, (1, 1))
        number += 1
        for entity in note["entities"][:1]:
            found += 1
            turns = (
                ("user", f"Which finding is this about? {note['text']}"),
                ("assistant", note["text"][slice(*entity["span"])]),
                ("user", "What does it say of it?"),
                ("assistant", entity["assertion"]),
            )
            yield {"messages": [{"role": role, "content": content} for role, content in turns], "lang": language}


WRITERS = {"translation": translations, "pairs": matches, "worldlm": shards, "instruct": conversations}


def assertions(language: str, count: int, seed: int) -> Iterator[dict[str, Any]]:
    """Sentences, each labelled with what it asserts of its first entity."""
    found, number = 0, 0
    while found < count:
        note = generator.note(language, number, seed, (1, 1))
        number += 1
        if note["entities"]:
            found += 1
            yield {"text": note["text"], "label": note["entities"][0]["assertion"], "lang": language}
