"""Execute the code of one page in the order of the page, in one interpreter: `python -m tests.docs.run_page PAGE`.

The working directory is a folder with small data under the names that the pages use. Runs are made small: one round of
the smallest model, in this process.
"""

import json
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from tests.docs.blocks import Block, blocks, elsewhere

WORDS = {
    "lyon": ["fièvre", "toux", "frisson", "douleur", "souffle", "froid", "gorge", "poumon"],
    "turin": ["febbre", "tosse", "brivido", "dolore", "respiro", "freddo", "gola", "polmone"],
    "haifa": ["fever", "cough", "chill", "ache", "breath", "cold", "throat", "lung"],
}
LANGUAGES = {"lyon": "fr", "turin": "it", "haifa": "en"}
SMALL = ["--set", "model=mini", "--set", "rounds=1", "--workers", "0"]
KNOWLEDGE = ["--set", "method={name: fedkc, q: 3}", "--set", "rounds=3"]  # rows enough for the attacks
# Options that make a command small, by its beginning.
SMALLER = {
    ("run", "clinics/small.yaml"): [*SMALL, "--set", "personal.rounds=1"],
    ("run", "federation.yaml", "--set", "release_log.knowledge=true"): [*SMALL, *KNOWLEDGE],
    ("run",): SMALL,
    ("compare",): SMALL,
    ("audit", "attack"): ["--centroids", "2", "--shadows", "1"],
}


def rows(silo: str, count: int) -> list[dict[str, object]]:
    """Short texts with a label that follows from their first word, and a patient."""
    words = WORDS[silo]
    return [
        {
            "text": " ".join(words[(i * 3 + j * (1 + i % 3)) % len(words)] for j in range(8)),
            "label": "low" if (i * 3) % len(words) < 4 else "high",
            "patient_id": i % 30,
        }
        for i in range(count)
    ]


def prepare(folder: Path) -> None:
    """Data and a federation file under the names that the pages use."""
    (folder / "data" / "haifa").mkdir(parents=True)
    for silo, file in {"lyon": "lyon.jsonl", "turin": "turin.jsonl", "haifa": "haifa/notes.jsonl"}.items():
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows(silo, 120))
        (folder / "data" / file).write_text(text, encoding="utf-8")
    pq.write_table(pa.Table.from_pylist(rows("turin", 120)), folder / "data" / "turin.parquet")
    silos = {name: {"train": f"data/{name}.jsonl", "language": LANGUAGES[name]} for name in ("lyon", "turin")}
    federation = {
        "name": "clinics",
        "task": {"name": "classify", "labels": ["high", "low"]},
        "model": "mini",
        "tokenizer": {"size": 400, "min_count": 2},
        "data": {"max_length": 24, "valid": 0.1, "test": 0.2},
        "silos": silos | {"haifa": {"train": "data/haifa", "language": "en"}},
        "rounds": 2,
        "train": {"lr": 0.1, "batch": 8, "samples": {"floor": 16}},
    }
    (folder / "federation.yaml").write_text(yaml.safe_dump(federation), encoding="utf-8")


def execute(block: Block, names: dict[str, object]) -> None:
    """Execute a block; names that Python blocks define stay for later blocks of the page."""
    if block.title:
        Path(block.title).write_text(block.text, encoding="utf-8")
    elif block.language == "python":
        exec(compile("\n" * block.line + block.text, str(block.page), "exec"), names)
    elif block.language == "sh":
        for words in block.commands:
            if words[0] == "hansa" and not elsewhere(words):
                command(words[1:])


def command(words: list[str]) -> None:
    """Run a command of the command line in this process, made small."""
    from hansa.cli.main import app

    more = next((extra for begin, extra in SMALLER.items() if tuple(words[: len(begin)]) == begin), [])
    print("$ hansa", *words, *more, flush=True)
    code = app([*words, *more], standalone_mode=False)
    assert not code, f"'hansa {' '.join(words)}' ended with exit code {code}"


def main() -> None:
    """Prepare the working directory, then execute the page."""
    import torch

    torch.set_num_threads(1)
    prepare(Path.cwd())
    names: dict[str, object] = {"__name__": "__main__"}
    for block in blocks(Path(sys.argv[1])):
        execute(block, names)


if __name__ == "__main__":
    main()
