"""De-identification: recall, precision and speed of the rules in eleven languages, and the speed of the tagger.

Recall counts an entity only when every one of its characters is covered; precision, a finding that overlaps one.
"""

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import process_time

import torch
from _figures import Figures

from hansa.data.corpora import clinical_notes as generator
from hansa.data.corpora.identified_notes import LANGUAGES, identified_notes
from hansa.data.deidentification.deidentify import Rules, deidentify
from hansa.data.deidentification.finders import load
from hansa.data.deidentification.measuring import measure
from hansa.data.deidentification.tagger import Tagger
from hansa.runs.finder import FinderSettings, train_finder

NOTES, HELD_BACK = 1000, 200
TARGETS = {"NAME": 0.02, "DATE": 0.03, "ID": 0.01, "PHONE": 0.01, "EMAIL": 0.01}


def speed(texts: list[str], work: Callable[[str], object]) -> float:
    """MB/s of one core, one text after another."""
    return rate(texts, lambda: [work(text) for text in texts])


def rate(texts: list[str], work: Callable[[], object]) -> float:
    """MB/s of one core: bytes by processor time, the best of three rounds, so that neighbours do not count."""
    shortest = float("inf")
    for _ in range(3):
        began = process_time()
        work()
        shortest = min(shortest, process_time() - began)
    return sum(len(text.encode()) for text in texts) / 1e6 / shortest


def find(rules: Rules, code: str, text: str) -> object:
    return rules.find(text, code)


def replaced(rules: Rules, code: str, text: str) -> object:
    return deidentify(text, code, rules, "key", "surrogates")


def held_back(figures: Figures, count: int) -> None:
    """Leak rates on notes whose sentences no finder was trained on: the worst language of each type."""
    finder, worst = load("rules+lists"), dict.fromkeys(TARGETS, 0.0)
    for code in LANGUAGES:
        found = measure(identified_notes(code, count, seed=3, held_back=True), finder, code)["types"]
        rates = {kind: float(found[kind]["leak_rate"] or 0.0) for kind in TARGETS if kind in found}
        print(code, " ".join(f"{kind} {rate:.3f}" for kind, rate in rates.items()))
        worst = {kind: max(rate, rates.get(kind, 0.0)) for kind, rate in worst.items()}
    for kind, target in TARGETS.items():
        what = f"held-back notes, {kind} left in clear, worst language"
        figures.add(f"deidentify_held_back_{kind.lower()}_leak", what, worst[kind], "share", "<=", target)


def tagger_speed(figures: Figures) -> None:
    """The speed of the tagger that `hansa data train-finder` trains, in batches, on one core.

    One pass over few notes is enough: the speed depends on the architecture and the vocabulary, not on the weights.
    """
    torch.set_num_threads(1)
    settings = FinderSettings(("en", "es"), 5, 1) if figures.smoke else FinderSettings(notes=300, passes=1)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "finder"
        train_finder(folder, [], "", settings)
        tagger, slowest = Tagger(str(folder)), float("inf")
        for code in settings.languages:
            texts = [note["text"] for note in identified_notes(code, 150, seed=3, held_back=True)]
            found = 1000 * rate(texts, partial(tagger.find_all, texts, code))
            print(f"{code}: {found:.0f} kB/s with the tagger")
            slowest = min(slowest, found)
    what = "the trained tagger on one core, slowest language"
    figures.add("deidentify_tagger_slowest_language", what, slowest, "kB/s", ">=", 100.0)


def main() -> None:
    figures = Figures.from_arguments()
    count = 5 if figures.smoke else NOTES
    rules, without_ages = Rules(), load("rules", keep=["AGE"])  # the generator annotates no ages
    slowest_find = slowest_replace = float("inf")
    for code in generator.LANGUAGES:
        notes = list(generator.notes(code, count, seed=1))
        found = measure(notes, without_ages, code)["overall"]
        figures.add(
            f"deidentify_{code}_character_recall",
            f"characters of generated details found, {code}",
            float(found["character_recall"]),
            "share",
            ">=",
            0.98,
        )
        figures.add(
            f"deidentify_{code}_recall",
            f"generated details found whole, {code}",
            float(found["recall"]),
            "share",
            ">=",
            0.98,
        )
        figures.add(
            f"deidentify_{code}_precision",
            f"findings that are generated details, {code}",
            float(found["precision"]),
            "share",
            ">=",
            0.95,
        )
        texts = [note["text"] for note in notes]
        finding = speed(texts, partial(find, rules, code))
        replacing = speed(texts, partial(replaced, rules, code))
        print(f"{code}: {finding:.2f} MB/s found, {replacing:.2f} MB/s found and replaced")
        slowest_find, slowest_replace = min(slowest_find, finding), min(slowest_replace, replacing)
    figures.add(
        "deidentify_find_slowest_language",
        "de-identification by rules on one core, slowest language",
        slowest_find,
        "MB/s",
        ">=",
        2.0,
    )
    figures.add(
        "deidentify_replace_slowest_language", "the same with surrogates put in", slowest_replace, "MB/s", ">=", 1.0
    )
    figures.found = figures.found[-2:] + figures.found[:-2]  # speed first
    held_back(figures, 3 if figures.smoke else HELD_BACK)
    tagger_speed(figures)
    figures.end()


if __name__ == "__main__":
    main()
