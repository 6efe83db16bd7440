"""200 simulated silos on one NATS server, 20 rounds of 1 MB: nothing is lost or doubled, and nothing grows.

Every silo has its own kit, its own connections and its own letter boxes; four processes hold fifty of them each.
"""

import os
import tempfile
from collections import Counter
from pathlib import Path
from time import perf_counter

import psutil
from _far import federation, model
from _figures import Figures

from hansa.core.messages import Train, Update

MB = 1 << 20
SETTLED = 5  # rounds after which nothing may grow


def look(folder: Path) -> dict[str, float]:
    """What the coordinator holds: memory, open files, files on disk and their bytes."""
    process = psutil.Process()
    files = [f for f in (folder / "server").rglob("*") if f.is_file()]
    return {
        "memory": float(process.memory_full_info().uss),
        "open": float(process.num_fds()),
        "files": float(len(files)),
        "bytes": float(sum(f.stat().st_size for f in files)),
    }


def main() -> None:
    figures, contributions = Figures.from_arguments(), Counter[tuple[int, str]]()
    silos, rounds, processes = (4, 2, 2) if figures.smoke else (200, 20, 4)
    names = [f"s{i}" for i in range(silos)]
    sent, seconds, looks = model(MB), [], []
    wrong = 0
    with tempfile.TemporaryDirectory() as folder, federation(Path(folder), silos, processes) as (link, _):
        for number in range(1, rounds + 1):
            sent.flat.fill_(float(number))
            began = perf_counter()
            for answer in link.ask(dict.fromkeys(names, Train(number, sent, number - 1)), None):
                reply = answer.reply
                if not isinstance(reply, Update):
                    continue
                contributions[number, answer.node] += 1
                own = reply.samples == 1 + int(answer.node[1:]) and reply.seen == number
                wrong += not (own and bool((reply.gradient.flat == float(number)).all()))
            seconds.append(perf_counter() - began)
            looks.append(look(Path(folder)))
            print(f"round {number}: {seconds[-1]:.2f} s, {looks[-1]}", flush=True)
    expected = {(number, name) for number in range(1, rounds + 1) for name in names}
    figures.add(
        "contributions_lost",
        "200 silos on one NATS server, 20 rounds of 1 MB: contributions lost",
        len(expected - set(contributions)),
        "of all",
        "<=",
        0,
    )
    figures.add(
        "contributions_doubled",
        "contributions counted twice",
        sum(n - 1 for n in contributions.values()),
        "of all",
        "<=",
        0,
    )
    figures.add("contributions_wrong", "contributions with wrong values", wrong, "of all", "<=", 0)
    settled, last = looks[min(SETTLED, rounds) - 1], looks[-1]
    for name in settled:
        figures.add(
            f"growth_of_{name}",
            f"growth of the coordinator's {name}, round {rounds} against {SETTLED}",
            last[name] / settled[name],
            "ratio",
            "<=",
            1.1,
        )
    figures.add("round_seconds", "a round of 200 silos", min(seconds), "s", "<=", 60)
    figures.end()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
