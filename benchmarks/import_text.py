"""Importing text: megabytes per second of one core against the sentence splitter alone, and memory against input size.

Speed is of processor time, so other work on the machine disturbs it less. The splitter (sentencex) takes some
15 µs for every full stop in Italian, against less than 1 µs elsewhere; Italian is therefore held against the
splitter's own speed, the others against a number.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time

from _figures import Figures
from sentencex import segment

from hansa.data.corpora import clinical_notes as generator
from hansa.data.importing.clean import clean
from hansa.data.importing.sentences import prepare
from hansa.data.importing.tally import Piece, Settings

LANGUAGES = ("en", "de", "fr", "es", "pt", "ru", "uk", "bg", "ar", "he")
NOTES, SMALL, LARGE, MEMORY = 300, 10, 200, 64
PIECE = 1 << 17
CHILD = """
import json, resource, sys
from pathlib import Path
from hansa.data.importing import Settings, import_text
report = import_text([Path(sys.argv[1])], Path(sys.argv[2]), Settings("en", memory=int(sys.argv[3]), documents="lines"))
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"peak": peak, "report": report}))
"""


def varied(language: str) -> Iterator[str]:
    """Notes without end, a line each, in which hardly a sentence is like an earlier one."""
    notes = [note["text"] for note in generator.notes(language, NOTES)]
    number = 0
    while True:
        for note in notes:
            number += 1
            words = note.split(" ")
            for place in range(2, len(words), 5):
                words[place] = f"{_word(number * 31 + place)} {words[place]}"
            yield " ".join(words) + "\n"


def _word(number: int) -> str:
    letters = ""
    while number:
        number, digit = divmod(number, 21)
        letters += "bcdfghjklmnpqrstvwxyz"[digit] + "aeiou"[digit % 5]
    return letters


def pieces(language: str, size: int) -> list[Piece]:
    """So many bytes of notes, in parts as an import reads them."""
    found: list[Piece] = []
    lines = varied(language)
    while sum(len(piece.text.encode()) for piece in found) < size:
        text = ""
        while len(text) < PIECE:
            text += next(lines)
        found.append(Piece("x", text))
    return found


def seconds(work: Callable[[], object]) -> float:
    shortest = float("inf")
    for _ in range(3):
        began = process_time()
        work()
        shortest = min(shortest, process_time() - began)
    return shortest


def speed(languages: tuple[str, ...], size: int) -> tuple[float, float]:
    """MB/s through cleaning, splitting, checks and fingerprints, and through the splitter alone; all bytes together."""
    ours = alone = total = 0.0
    for language in languages:
        batch = pieces(language, size)
        bytes_here = sum(len(piece.text.encode()) for piece in batch)
        cleaned = [clean(piece.text, "text", False) for piece in batch]
        settings = Settings(language, keep_other_languages=True, near=0.0)
        mine = seconds(lambda: [prepare([piece], settings) for piece in batch])  # noqa: B023 (called at once)
        theirs = seconds(lambda: [segment(language, text) for text in cleaned])  # noqa: B023
        print(f"{language}  {bytes_here / mine / 1e6:6.1f} MB/s, splitter alone {bytes_here / theirs / 1e6:6.1f} MB/s")
        ours, alone, total = ours + mine, alone + theirs, total + bytes_here
    return total / ours / 1e6, total / alone / 1e6


def peak(folder: Path, megabytes: int) -> float:
    """Peak memory in MB of an import of so much text, in a process of its own."""
    source = folder / f"{megabytes}.txt"
    written = 0
    with source.open("w", encoding="utf-8") as stream:
        for line in varied("en"):
            written += stream.write(line)
            if written > megabytes * 1e6:
                break
    arguments = [sys.executable, "-c", CHILD, str(source), str(folder / f"out{megabytes}"), str(MEMORY)]
    done = json.loads(subprocess.run(arguments, check=True, capture_output=True, text=True).stdout)
    report = done["report"]
    print(
        f"{megabytes:,} MB: peak {done['peak'] / 1024:,.0f} MB; whole import of notes, a line each, with language check"
        f" and near-duplicates {report['megabytes_per_second']} MB/s of elapsed time, "
        f"{report['sentences']['kept']:,} of {report['sentences']['read']:,} sentences kept, notes: {report['notes']}"
    )
    source.unlink()
    return float(done["peak"] / 1024)


def main() -> None:
    figures = Figures.from_arguments()
    large, size = (2, 20_000) if figures.smoke else (LARGE, 2_000_000)
    with TemporaryDirectory() as folder:  # first, while this process is small
        small = peak(Path(folder), 1 if figures.smoke else SMALL)
        memory = peak(Path(folder), large) / small
    ours, _ = speed(LANGUAGES[:1] if figures.smoke else LANGUAGES, size)
    figures.add(
        "import_clean_and_split",
        "importing text on one core: cleaning and splitting, ten languages",
        ours,
        "MB/s",
        ">=",
        20.0,
    )
    ours, alone = speed(("it",), size // 4)
    figures.add(
        "import_italian_vs_splitter_alone",
        "the same for Italian against the sentence splitter alone",
        ours / alone,
        "ratio",
        ">=",
        0.7,
    )
    figures.add(
        "import_memory_large_vs_10MB", f"memory of an import of {LARGE} MB against 10 MB", memory, "ratio", "<=", 1.1
    )
    figures.end()


if __name__ == "__main__":
    main()
