"""Preparing a silo's data: memory against the number of rows, and speed against the tokenizer alone.

    python benchmarks/prepare.py [--rows 10000000] [--smoke] [--json FILE]

Memory is the peak of anonymous memory (RssAnon) of a process that tokenises a file of short lines, draws the samples of
two rounds and goes through all samples in the order of their lengths. Files that are mapped do not count: the system
drops their pages when memory is short. Speed is rows per second of elapsed time, against `encode_batch` of the
tokenizers library on the same rows in the same process, both with all cores, in turns.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from _far import Memory
from _federations import words
from _figures import Figures

from hansa.client.sampling import draw
from hansa.config.sections import Samples, Training
from hansa.core.seeds import stream
from hansa.data.arrays import counted
from hansa.data.batching import batches
from hansa.data.chunks import PARALLEL, all_cores
from hansa.data.examples import Examples, load
from hansa.data.settings import Data
from hansa.data.source import Source
from hansa.models.tokenizer import train_vocabulary
from hansa.tasks.base import Vocabulary
from hansa.tasks.mlm import MaskedLM

FEW, MANY = 100_000, 10_000_000
TIMED, TIMES = 50_000, 3
AT_ONCE = 2000  # texts that the tokenizer alone is given together, as many as in preparation
WORDS = 5000


def vocabulary() -> Vocabulary:
    """A byte-pair vocabulary as Hansa builds it, of words of which some are frequent."""
    return Vocabulary(train_vocabulary({word: 1 + 20_000 // (1 + i) for i, word in enumerate(words(WORDS))}, 4000), 64)


def lines(count: int, longest: int) -> Iterator[str]:
    """Short lines; a word is the more frequent the earlier it stands in the list."""
    known, rng = words(WORDS), stream(2)
    for start in range(0, count, 10_000):
        number = min(10_000, count - start)
        chosen = (rng.random((number, longest)) ** 3 * len(known)).astype(int)
        for row, length in zip(chosen, rng.integers(2, longest + 1, number), strict=True):
            yield " ".join(known[i] for i in row[:length])


def write(file: Path, count: int, longest: int) -> Path:
    with file.open("w", encoding="utf-8") as stream:
        stream.writelines(line + "\n" for line in lines(count, longest))
    return file


def prepare(file: Path, known: Vocabulary, data: Data) -> Examples:
    task, source = MaskedLM(), Source(train=str(file))
    return load([source], "train", data, ["en"], lambda some, s: task.encode(some, s, known), file.name)


def child(file: Path) -> None:
    """Prepare a file; print the number of samples and the peak of anonymous memory in bytes."""
    memory, known = Memory(), vocabulary()
    began = perf_counter()
    held = prepare(file, known, Data())
    seconds = perf_counter() - began
    used = sum(held.counts().values()) + held.rows_behind()
    for samples in (Samples(epochs=1), Samples(floor=500, fraction=1e-4, replace=False)):
        training = Training(samples=samples)
        chosen = draw(training, len(held), stream(1), 0, 1, "en")
        used += sum(len(batch) for batch in batches(chosen, held.lengths, 64, stream(2)))
    used += sum(int(held[int(b[0])][0]) for b in batches(counted(len(held)), held.lengths, 4096, None))
    print(json.dumps({"peak": memory.peak(), "samples": len(held), "seconds": seconds, "used": used}))


def peak(folder: Path, rows: int) -> float:
    """Peak of anonymous memory in MB of a process that prepares so many rows."""
    file = write(folder / f"{rows}.txt", rows, 8)
    command = [sys.executable, __file__, "--child", str(file)]
    environment = os.environ | {"HANSA_CACHE": str(folder / "cache"), PARALLEL: "false"}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    found = json.loads(done.stdout)
    file.unlink()
    print(
        f"{rows:,} rows: peak of anonymous memory {found['peak'] / 1e6:,.0f} MB, "
        f"{found['samples']:,} training samples, prepared in {found['seconds']:,.0f} s",
        flush=True,
    )
    return float(found["peak"])


def speed(folder: Path, rows: int, times: int) -> float:
    """Rows per second of preparation over those of the tokenizer alone; of each the best of several, in turns."""
    known, ours, alone = vocabulary(), float("inf"), float("inf")
    os.environ["HANSA_CACHE"] = str(folder / "timed")
    file = write(folder / "timed.txt", rows, 12)
    texts = file.read_text(encoding="utf-8").splitlines()
    for turn in range(times):
        copy = folder / f"timed{turn}.txt"  # its name is part of the key of the cache here
        file = file.rename(copy)
        began = perf_counter()
        held = prepare(file, known, Data(valid=0.0, test=0.0))
        assert held.rows_behind() == rows, "every line is used"
        ours = min(ours, perf_counter() - began)
        with all_cores():
            began = perf_counter()
            for start in range(0, rows, AT_ONCE):
                known.tokenizer.backend_tokenizer.encode_batch(texts[start : start + AT_ONCE])
            alone = min(alone, perf_counter() - began)
    print(f"{rows / ours:,.0f} rows per second, the tokenizer alone {rows / alone:,.0f}")
    return alone / ours


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--smoke", action="store_true", help="tiny inputs: only to see that it works")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--rows", type=int, default=MANY, help="rows of the large file")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child is not None:
        child(given.child)
        return
    figures = Figures(given.smoke, given.json)
    few, many, timed = (1000, 4000, 1000) if given.smoke else (FEW, given.rows, TIMED)
    with TemporaryDirectory() as name:
        ratio = speed(Path(name), timed, 1 if given.smoke else TIMES)
        small = peak(Path(name), few)
        memory = peak(Path(name), many) / small
    what = f"memory of preparing and drawing from {many:,} rows against {few:,}"
    figures.add("prepare_memory_many_vs_few_rows", what, memory, "ratio", "<=", 1.2)
    figures.add("prepare_vs_tokenizer_alone", "preparing rows against the tokenizer alone", ratio, "ratio", ">=", 0.8)
    figures.end()


if __name__ == "__main__":
    main()
