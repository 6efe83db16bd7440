"""Laws of whole runs: what must not matter does not."""

from pathlib import Path
from typing import Any

import pytest
import torch

from hansa.client.host import SiloHost
from hansa.client.runtime import Runtime
from hansa.config import file as federation_file
from hansa.config.federation import Federation
from hansa.config.nodes import Node
from hansa.links.local import LocalLink
from hansa.links.pool import PoolLink
from hansa.runs.callbacks import RunEvents
from hansa.runs.directory import RunDirectory
from hansa.runs.ledger import Ledger
from hansa.runs.run import Run, run
from hansa.runs.start import begin, describe
from tests.conftest import Build, same, weights


def run_over(federation: Federation, folder: Path, link_of: Any) -> dict[str, torch.Tensor]:
    """A whole run over a given link."""
    directory, callbacks = RunDirectory.create(federation, folder, False), RunEvents()
    ledger = Ledger(folder)
    host = SiloHost(Runtime(federation, folder))
    link = link_of(host)
    begin(federation, directory, link, ledger, callbacks)
    cards = describe(federation, directory, link, ledger, callbacks)
    Run(federation, directory, link, cards, ledger, callbacks).go()
    ledger.close()
    return weights(folder / "model")


def test_over_the_wire_is_the_same_as_direct(federation: Build, tmp_path: Path) -> None:
    settings = federation()
    direct = run_over(settings, tmp_path / "direct", lambda host: LocalLink(lambda n: host.silo(n).answer))
    wired = run_over(settings, tmp_path / "wired", lambda host: LocalLink(lambda n: host.silo(n).answer, True))
    assert same(direct, wired)


def test_any_number_of_workers_gives_the_same_bits(federation: Build, tmp_path: Path) -> None:
    settings = federation(participation={"count": 2}, server={"optimizer": "adam", "lr": 0.01})
    results = []
    for workers in (0, 1, 2):
        outcome = run(settings, tmp_path / str(workers), workers=workers)
        results.append(weights(outcome.folder / "model"))
    assert same(results[0], results[1])
    assert same(results[0], results[2])


def test_another_seed_gives_another_run(federation: Build, tmp_path: Path) -> None:
    models = [weights(run(federation(seed=seed), tmp_path / str(seed), workers=0).folder / "model") for seed in (0, 1)]
    assert not same(*models)


def test_the_order_of_silos_does_not_matter(federation: Build, tmp_path: Path) -> None:
    settings = federation(sizes={"north": 60, "south": 60, "east": 60})
    turned = settings.model_copy(update={"silos": dict(reversed(settings.silos.items()))})
    models = [weights(run(s, tmp_path / str(i), workers=0).folder / "model") for i, s in enumerate((settings, turned))]
    assert same(*models)


def test_a_tree_with_one_edge_round_is_flat_fedavg(federation: Build, tmp_path: Path) -> None:
    flat = federation(sizes={"north": 60, "south": 50, "east": 40, "north-2": 30})

    def region(*names: str) -> Node:
        return Node(silos={name: flat.silos[name] for name in names})

    tree = flat.model_copy(update={"silos": {"west": region("north", "south"), "far": region("east", "north-2")}})
    a = weights(run(flat, tmp_path / "flat", workers=0).folder / "model")
    b = weights(run(tree, tmp_path / "tree", workers=2).folder / "model")
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=1e-4, atol=2e-6)
    two_rounds = {name: node.model_copy(update={"rounds": 2}) for name, node in tree.silos.items()}
    c = weights(run(tree.model_copy(update={"silos": two_rounds}), tmp_path / "two", workers=0).folder / "model")
    assert any((a[name] - c[name]).abs().max() > 1e-3 for name in a), "more edge rounds are another algorithm"


def test_splitting_a_silo_in_two_changes_nothing_with_one_full_step(tmp_path: Path) -> None:
    """Under FedAvg with one step on all of its data, a silo equals its two halves: gradients of means are means."""
    from tests.conftest import WORDS, write_words

    folder = tmp_path / "data"
    folder.mkdir()
    whole = write_words(folder / "whole.jsonl", WORDS["north"], 40, labels=True)
    lines = whole.read_text(encoding="utf-8").splitlines(keepends=True)
    (folder / "first.jsonl").write_text("".join(lines[:16]), encoding="utf-8")
    (folder / "second.jsonl").write_text("".join(lines[16:]), encoding="utf-8")
    models = []
    for name, silos in (("one", ["whole"]), ("two", ["first", "second"])):
        settings = federation_file.parse(
            {
                "silos": {s: {"train": str(folder / f"{s}.jsonl"), "test": str(whole)} for s in silos},
                "task": {"name": "classify", "labels": ["low", "high"]},
                "tokenizer": {"kind": "bytes"},
                "data": {"max_length": 64, "valid": 0.0},
                "rounds": 2,
                "train": {"lr": 0.5, "batch": 64, "samples": {"epochs": 1}},
            }
        )
        models.append(weights(run(settings, tmp_path / name, workers=0).folder / "model"))
    for tensor in models[0]:
        torch.testing.assert_close(models[0][tensor], models[1][tensor], rtol=1e-4, atol=1e-6)


def test_central_training_is_a_federation_of_one(federation: Build, tmp_path: Path) -> None:
    """The pooled baseline sees every language, and learns."""
    settings = federation(kind="central", rounds=8, baseline={"optimizer": "adamw", "lr": 3e-3, "keep_optimizer": True})
    outcome = run(settings, tmp_path / "central", workers=0)
    assert set(outcome.metrics) == {"north", "south", "east"}
    base = run(settings.model_copy(update={"kind": "base"}), tmp_path / "base", workers=0)
    assert outcome.metrics["north"]["perplexity"] < base.metrics["north"]["perplexity"] / 2


@pytest.mark.parametrize("kind", ["federated", "per-silo"])
def test_partial_runs_resume_to_the_same_bits(federation: Build, tmp_path: Path, kind: Any) -> None:
    """Stop after some rounds by raising in the watcher, resume, and end where the uninterrupted run ends."""
    settings = federation(
        kind=kind,
        rounds=6,
        evaluate={"every": 1, "share": 1.0},
        checkpoint={"every": 2},
        baseline={"optimizer": "adamw", "lr": 1e-3, "keep_optimizer": True},
    )
    whole = run(settings, tmp_path / "whole", workers=0).folder

    class Stop:
        def on_round_end(self, run: Any, record: Any) -> None:
            if record.number == 3:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(settings, tmp_path / "cut", workers=0, callbacks=[Stop()])
    cut = run(settings, tmp_path / "cut", resume=True, workers=0).folder
    part = "model" if kind == "federated" else "silos/south/model"
    assert same(weights(whole / part), weights(cut / part))
    assert len((cut / "metrics.jsonl").read_text().splitlines()) == len(
        (whole / "metrics.jsonl").read_text().splitlines()
    )


def test_the_pool_runs_a_thousand_small_requests_without_growing(federation: Build, tmp_path: Path) -> None:
    """Blocks of shared memory are reused, whatever the number of rounds."""
    settings = federation()
    blocks: list[int] = []

    class CountBlocks:
        def on_round_end(self, run: Any, record: Any) -> None:
            blocks.append(len(link._blocks._all))

    directory, callbacks = RunDirectory.create(settings, tmp_path / "run", False), RunEvents([CountBlocks()])
    ledger = Ledger(directory.path)
    with PoolLink(settings, directory.path, 2) as link:
        begin(settings, directory, link, ledger, callbacks)
        cards = describe(settings, directory, link, ledger, callbacks)
        many = settings.model_copy(update={"rounds": 30})
        Run(many, directory, link, cards, ledger, callbacks).go()
    ledger.close()
    assert blocks[-1] == blocks[5]
