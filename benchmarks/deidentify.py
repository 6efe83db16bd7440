"""De-identification: recall, precision, speed and leak rates in eleven languages, and the speed of the tagger.

    python benchmarks/deidentify.py
    HANSA_ANNOTATED=notes.jsonl.gz HANSA_ANNOTATED_LANGUAGE=es python benchmarks/deidentify.py

Recall counts an entity only when every one of its characters is covered; precision, a finding that overlaps one.

``HANSA_ANNOTATED`` names annotated notes of your own, JSON Lines with ``personal`` spans (also .gz), of which the leak
rates are printed by class. Only every second line is measured, the odd ones counted from 0, so that the even lines can
be looked at for tuning. ``HANSA_ANNOTATED_LANGUAGE`` is the language of rows without ``lang``.
``HANSA_LEAKS_ONLY=1`` leaves out speeds, and so the training of the tagger.
"""

import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any

import torch
from _figures import Figures

from hansa.data.corpora import clinical_notes as generator
from hansa.data.corpora.identified_notes import LANGUAGES, identified_notes
from hansa.data.deidentification.deidentify import Deidentifier, Rules, deidentify
from hansa.data.deidentification.files import gold_rows
from hansa.data.deidentification.finders import load
from hansa.data.deidentification.lexicon import same_length
from hansa.data.deidentification.measuring import LABELLED, RUNNING, measure
from hansa.data.deidentification.tagger import Tagger
from hansa.runs.finder import FinderSettings, train_finder

NOTES, HELD_BACK = 1000, 200
TARGETS = {"NAME": 0.02, "DATE": 0.03, "ID": 0.01, "PHONE": 0.01, "EMAIL": 0.01}
# On annotated notes of others; of names, those with a label and those in running text.
ANNOTATED_TARGETS = {
    LABELLED: 0.01, RUNNING: 0.10, "DATE": 0.03, "ID": 0.03, "ADDRESS": 0.15, "TOWN": 0.15, "HOSPITAL": 0.25
}  # fmt: skip
CASES: dict[str, Callable[[str], str]] = {"capitals": str.upper, "small letters": str.lower}


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


def find(finder: Deidentifier, code: str, text: str) -> object:
    return finder.find(text, code)


def replaced(rules: Rules, code: str, text: str) -> object:
    return deidentify(text, code, rules, "key", "surrogates")


def held_back(figures: Figures, count: int) -> None:
    """Leak rates on notes whose sentences no finder was trained on: the worst language of each type.

    Also how much more leaks, and how precise the findings are, if a text has capitals or small letters only.
    """
    finder, worst = load("rules+lists"), dict.fromkeys(TARGETS, 0.0)
    risen, lowest = 0.0, 1.0
    for code in LANGUAGES:
        notes = list(identified_notes(code, count, seed=3, held_back=True))
        scores = measure(notes, finder, code)
        found = scores["types"]
        rates = {kind: float(found[kind]["leak_rate"] or 0.0) for kind in TARGETS if kind in found}
        worst = {kind: max(rate, rates.get(kind, 0.0)) for kind, rate in worst.items()}
        parts = [f"{kind} {rate:.3f}" for kind, rate in rates.items()]
        parts.append(f"precision {scores['overall']['precision']:.3f}")
        for name, change in CASES.items():
            written = [note | {"text": same_length(note["text"], change)} for note in notes]
            overall = measure(written, finder, code)["overall"]
            more = float(overall["leak_rate"]) - float(scores["overall"]["leak_rate"])
            risen, lowest = max(risen, more), min(lowest, float(overall["precision"]))
            parts.append(f"in {name} {100 * more:+.1f} points, precision {overall['precision']:.3f}")
        print(f"{code}: {', '.join(parts)}")
    for kind, target in TARGETS.items():
        what = f"held-back notes, {kind} left in clear, worst language"
        figures.add(f"deidentify_held_back_{kind.lower()}_leak", what, worst[kind], "share", "<=", target)
    what = "held-back notes in one case, rise of the leak rate, worst language"
    figures.add("deidentify_one_case_rise", what, risen, "share", "<=", 0.02)
    figures.add("deidentify_one_case_precision", "the same, precision, worst language", lowest, "share", ">=", 0.90)


def annotated(figures: Figures, path: Path, language: str, count: int | None) -> None:
    """Leak rates by class on the odd lines of annotated notes."""
    rows = list(gold_rows([path], "text", language))[1::2][:count]
    codes = sorted({code for code, _ in rows})
    for code in codes:
        scores = measure((row for of, row in rows if of == code), load("rules+lists"), code)
        shown: dict[str, dict[str, Any]] = {**scores["types"], **scores["names"]}
        for kind, one in sorted(shown.items()):
            if one["entities"]:
                print(f"{code} {kind}: {one['leaked']} of {one['entities']} left in clear ({one['leak_rate']:.3f})")
        for kind, target in ANNOTATED_TARGETS.items():
            if kind in shown and shown[kind]["entities"]:
                name = f"deidentify_annotated_{code}_{kind.lower().replace(' ', '_')}_leak"
                what = f"annotated notes, {code}, {kind} left in clear"
                figures.add(name, what, float(shown[kind]["leak_rate"]), "share", "<=", target)
        precision = float(scores["overall"]["precision"] or 0.0)
        figures.add(f"deidentify_annotated_{code}_precision", f"the same, {code}", precision, "share", ">=", 0.90)


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


def rules_figures(figures: Figures, count: int) -> None:
    """Recall and precision of the rules on generated notes; the speeds of rules, and of rules and lists."""
    rules, without_ages = Rules(), load("rules", keep=["AGE"])  # the generator annotates no ages
    both = load("rules+lists")
    speeds = dict.fromkeys(("find", "replace", "lists"), float("inf"))
    for code in generator.LANGUAGES:
        notes = list(generator.notes(code, count, seed=1))
        found = measure(notes, without_ages, code)["overall"]
        for name, what, target in (
            ("character_recall", f"characters of generated details found, {code}", 0.98),
            ("recall", f"generated details found whole, {code}", 0.98),
            ("precision", f"findings that are generated details, {code}", 0.95),
        ):
            figures.add(f"deidentify_{code}_{name}", what, float(found[name]), "share", ">=", target)
        texts = [note["text"] for note in notes]
        here = {
            "find": speed(texts, partial(find, rules, code)),
            "replace": speed(texts, partial(replaced, rules, code)),
            "lists": speed(texts, partial(find, both, code)),
        }
        print(
            f"{code}: {here['find']:.2f} MB/s found by rules, {here['replace']:.2f} MB/s found and replaced, "
            f"{here['lists']:.2f} MB/s found by rules and lists"
        )
        speeds = {name: min(value, here[name]) for name, value in speeds.items()}
    for name, what, value in (
        ("find", "de-identification by rules on one core, slowest language", 2.0),
        ("replace", "the same with surrogates put in", 1.0),
        ("lists", "de-identification by rules and lists on one core, slowest language", 0.1),
    ):
        figures.add(f"deidentify_{name}_slowest_language", what, speeds[name], "MB/s", ">=", value)
    figures.found = figures.found[-3:] + figures.found[:-3]  # speed first


def main() -> None:
    figures = Figures.from_arguments()
    if not os.environ.get("HANSA_LEAKS_ONLY"):
        rules_figures(figures, 5 if figures.smoke else NOTES)
    held_back(figures, 3 if figures.smoke else HELD_BACK)
    if path := os.environ.get("HANSA_ANNOTATED"):
        language = os.environ.get("HANSA_ANNOTATED_LANGUAGE", "")
        annotated(figures, Path(path), language, 3 if figures.smoke else None)
    if not os.environ.get("HANSA_LEAKS_ONLY"):
        tagger_speed(figures)
    figures.end()


if __name__ == "__main__":
    main()
