"""De-identification rules: which personal details are found, which text is left alone, and how this is scored."""

# ruff: noqa: RUF001 (texts in nine scripts and languages)
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from hansa.core.errors import UserError
from hansa.core.seeds import stream
from hansa.data.corpora import clinical_notes as generator
from hansa.data.deidentification.deidentify import Finding, Rules, load
from hansa.data.deidentification.lexicon import FOLDER, vocabulary
from hansa.data.deidentification.measuring import measure

RULES = Rules()
LANGUAGES = sorted(path.stem for path in FOLDER.glob("*.yaml"))
TEXTS = yaml.safe_load((Path(__file__).parent.parent / "deidentify_texts.yaml").read_text(encoding="utf-8"))


def held_out(code: Any, note: Any, number: Any) -> Any:
    """The note with every personal detail replaced by one that the generator does not use."""
    rng = stream(5, "held out", code, number)
    months = generator.language(code).formats["months"]
    keys = {"NAME": "names", "DATE": "dates", "PHONE": "phones", "ID": "ids", "ADDRESS": "addresses"}
    text, personal, position = "", [], 0
    for item in sorted(note["personal"], key=lambda p: p["span"]):
        start, end = item["span"]
        said = note["text"][start:end]
        if item["type"] in keys:
            choices = TEXTS["held_out"][code][keys[item["type"]]]
            said = choices[int(rng.integers(len(choices)))].replace("{m}", months[int(rng.integers(12))])
            said = re.sub("#", lambda _: str(rng.integers(1, 9)), said)
        text += note["text"][position:start]
        personal.append({"span": [len(text), len(text) + len(said)], "type": item["type"]})
        text, position = text + said, end
    return {"text": text + note["text"][position:], "personal": personal}


def unmarked(marked: Any) -> Any:
    text, personal = "", []
    for piece in re.split("(‹[^›]*›)", marked):
        if piece.startswith("‹"):
            personal.append((len(text), len(text) + len(piece) - 2))
            piece = piece[1:-1]
        text += piece
    return text, personal


@pytest.mark.parametrize("code", LANGUAGES)
def test_sentences_written_by_hand(code: Any) -> None:
    for marked in TEXTS["sentences"][code]:
        text, personal = unmarked(marked)
        found = RULES.find(text, code)
        covered = {place for f in found for place in range(f.start, f.end)}
        missed = [
            text[s:e]
            for s, e in personal
            if not covered >= set(range(s, e)) - {i for i, c in enumerate(text) if c == "."}
        ]
        wrong = [text[f.start : f.end] for f in found if not any(f.start < e and f.end > s for s, e in personal)]
        assert (missed, wrong) == ([], []), [text[f.start : f.end] for f in found]


@pytest.mark.parametrize("code", LANGUAGES)
def test_clinical_content_is_left_alone(code: Any) -> None:
    text = TEXTS["clinical"][code]
    found = [text[f.start : f.end] for f in RULES.find(text, code)]
    assert [words for words in found if not re.fullmatch(r"(?:19|20)\d\d", words)] == [], "years are replaced"


@pytest.mark.parametrize("code", generator.LANGUAGES)
def test_recall_and_precision_on_the_generators_gold(code: Any) -> None:
    found = measure(generator.notes(code, 150, seed=21), load("rules", keep=["AGE"]), code)
    assert found["overall"]["recall"] >= 0.98
    assert found["overall"]["character_recall"] >= 0.98
    assert found["overall"]["precision"] >= 0.95
    assert set(found["types"]) == {"NAME", "DATE", "PHONE", "EMAIL", "ID", "ADDRESS"}


@pytest.mark.parametrize("code", generator.LANGUAGES)
def test_recall_on_names_and_formats_that_the_generator_does_not_use(code: Any) -> None:
    rows = [held_out(code, note, i) for i, note in enumerate(generator.notes(code, 100, seed=22))]
    found = measure(rows, load("rules", keep=["AGE"]), code)["overall"]
    assert found["recall"] >= 0.95
    assert found["precision"] >= 0.95


@pytest.mark.parametrize("code", generator.LANGUAGES)
def test_the_rules_contain_no_names_of_people_or_places(code: Any) -> None:
    said = generator.language(code)
    known = {*said.people["female"], *said.people["male"], *said.people["family"], *said.places["cities"]}
    listed = set(re.findall(r"[\w'’׳״-]+", (FOLDER / f"{code}.yaml").read_text(encoding="utf-8")))
    named = slice(-1) if code == "en" else slice(1, None)  # the other word is "Street"
    streets = {word for street in said.places["streets"] for word in street.split()[named] if word[0].isupper()}
    streets -= set(vocabulary(code).words("address", "suffixes"))  # "Park" names a road and is a kind of road
    assert not (known | streets) & listed


class Nothing:
    def find(self, text: Any, language: Any) -> Any:
        return []


class Everything:
    def find(self, text: Any, language: Any) -> Any:
        return [Finding(0, len(text), "NAME")]


def test_scores_of_a_finder_that_finds_nothing_or_everything() -> None:
    rows = list(generator.notes("it", 20))
    nothing, everything = measure(rows, Nothing(), "it")["overall"], measure(rows, Everything(), "it")["overall"]
    assert nothing["recall"] == nothing["character_recall"] == 0
    assert nothing["precision"] is None
    assert everything["recall"] == everything["precision"] == 1
    assert everything["character_precision"] < 0.3
    assert everything["exact_recall"] == 0


def test_measure_counts_by_hand() -> None:
    class Half:
        def find(self, text: Any, language: Any) -> Any:
            return [Finding(0, 4, "NAME"), Finding(6, 8, "DATE"), Finding(9, 10, "ID")]

    row = {"text": "abcdefghij", "personal": [{"span": [0, 4], "type": "NAME"}, {"span": [5, 9], "type": "DATE"}]}
    found = measure([row], Half(), "it")
    assert found["overall"]["character_recall"] == 6 / 8
    assert found["overall"]["character_precision"] == 6 / 7
    assert found["overall"]["recall"] == 1 / 2, "a date that is half covered does not count as found"
    assert found["overall"]["precision"] == 2 / 3
    assert found["overall"]["exact_recall"] == 1 / 2
    assert found["types"]["DATE"]["recall"] == 0
    assert found["types"]["ID"]["recall"] is None


def test_a_language_without_rules_is_refused_by_name() -> None:
    with pytest.raises(UserError, match="language 'xx' has no rules"):
        RULES.find("text", "xx")
    assert vocabulary("pt-BR") is not None
