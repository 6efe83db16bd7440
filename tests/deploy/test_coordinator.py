"""Runs over mutual TLS, with a real broker, give the same bits as runs in one process."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import hansa
from hansa.config.nodes import Node
from hansa.deploy.coordinator import serve
from hansa.deploy.kit import COORDINATOR, Kit
from hansa.runs.run import run
from tests.conftest import Build, same, weights
from tests.deploy.conftest import joined, make_kits, over_the_network, regions


@pytest.mark.parametrize("secure_aggregation", [False, True])
def test_three_silos_over_mutual_tls_give_the_bits_of_a_run(
    federation: Build, tmp_path: Path, log: Any, secure_aggregation: Any
) -> None:
    settings = federation(server={"optimizer": "adam", "lr": 0.01}, secure_aggregation=secure_aggregation)
    here = run(settings, tmp_path / "here", workers=0)
    there = over_the_network(settings, tmp_path / "there", log)
    assert same(weights(here.folder / "model"), weights(there.folder / "model"))
    assert here.metrics == there.metrics


def test_steps_ahead_and_differences_over_the_network_give_the_bits_of_a_run(
    federation: Build, tmp_path: Path, log: Any
) -> None:
    """Agents train while updates travel, a simulation does not; both send 4 bits in both directions."""
    settings = federation(
        method="diloco",
        rounds=3,
        upload="int4",
        download="int4",
        train={"optimizer": "adamw", "lr": 0.01, "batch": 8, "samples": {"floor": 16}, "overlap": True},
    )
    here = run(settings, tmp_path / "here", workers=0)
    there = over_the_network(settings, tmp_path / "there", log)
    assert same(weights(here.folder / "model"), weights(there.folder / "model"))
    assert here.metrics == there.metrics


def test_a_tree_over_sockets_gives_the_bits_of_a_run(federation: Build, tmp_path: Path, log: Any) -> None:
    flat = federation(sizes={"north": 60, "south": 50, "east": 40, "north-2": 30}, rounds=2)

    def region(rounds: int, *names: str) -> Node:
        return Node(silos={name: flat.silos[name] for name in names}, rounds=rounds)

    silos = {"west": region(2, "north", "south"), "far": region(1, "east", "north-2")}
    tree = flat.model_copy(update={"silos": silos})
    here = run(tree, tmp_path / "here", workers=0)
    there = over_the_network(tree, tmp_path / "there", log)
    assert same(weights(here.folder / "model"), weights(there.folder / "model"))


@pytest.mark.parametrize("method", ["fedavg", "worldlm"])
def test_secure_aggregation_in_regions_over_sockets_gives_the_bits_of_a_run(
    federation: Build, tmp_path: Path, log: Any, method: str
) -> None:
    """Two regions and a silo below the root, which aggregates all three under masks; so does each region its silos."""
    names = [f"{word}-{number}" for number in (1, 2) for word in ("north", "south", "east")]
    flat = federation(
        sizes=dict.fromkeys([*names, "north"], 30),
        rounds=2,
        task="causal-lm",
        method=method,
        aggregate={"weights": "uniform"},
        secure_aggregation=True,
        evaluate={"every": 2, "share": 1.0},
    )

    def region(rounds: int, *below: str) -> Node:
        return Node(silos={name: flat.silos[name] for name in below}, rounds=rounds)

    silos = {"west": region(2, *names[:3]), "far": region(1, *names[3:]), "north": flat.silos["north"]}
    tree = flat.model_copy(update={"silos": silos})
    here = run(tree, tmp_path / "here", workers=0)
    there = over_the_network(tree, tmp_path / "there", log)
    assert same(weights(here.folder / "model"), weights(there.folder / "model"))
    assert here.metrics == there.metrics


def test_python_yaml_and_the_network_give_the_same_bits(federation: Build, tmp_path: Path, log: Any) -> None:
    settings = federation(rounds=2)
    fed = hansa.Federation.from_settings(settings)
    fed.to_yaml(tmp_path / "fed.yaml")
    python = hansa.run(fed.replace(), out=tmp_path / "python", workers=0, progress=False)
    yaml = hansa.run(tmp_path / "fed.yaml", out=tmp_path / "yaml", workers=0, progress=False)
    there = over_the_network(settings, tmp_path / "there", log)
    assert same(weights(python.folder / "model"), weights(yaml.folder / "model"))
    assert same(weights(python.folder / "model"), weights(there.folder / "model"))
    assert python.metrics == yaml.metrics == there.metrics
    local, remote = (one.scores.sort_values(list(one.scores.columns[:5])) for one in (python, there))
    assert local.values.tolist() == remote.values.tolist(), "also by silo"


def test_two_regions_aggregate_securely_below_a_root_that_sees_their_means(
    federation: Build, tmp_path: Path, log: Any
) -> None:
    names = [f"{word}-{number}" for number in (1, 2) for word in ("north", "south", "east")]
    flat = federation(sizes=dict.fromkeys(names, 30), rounds=1, secure_aggregation=True)
    silos = {f"part-{i}": Node(silos={n: flat.silos[n] for n in names[3 * i : 3 * i + 3]}) for i in range(2)}
    tree = flat.model_copy(update={"silos": silos})
    here = run(tree, tmp_path / "here", workers=0)
    there = over_the_network(tree, tmp_path / "there", log)
    assert same(weights(here.folder / "model"), weights(there.folder / "model"))


def test_worldlm_over_sockets_gives_the_bits_of_a_run(federation: Build, tmp_path: Path, log: Any) -> None:
    """A root, two regions, one of them with its own data, four silos; residuals and attention go over the network."""
    flat = federation(
        sizes={"north": 60, "south": 50, "east": 40, "north-2": 30, "south-2": 20},
        task="causal-lm",
        method="worldlm",
        rounds=2,
        evaluate={"every": 1, "share": 1.0},
    )

    def region(rounds: int, *names: str) -> Node:
        return Node(silos={name: flat.silos[name] for name in names}, rounds=rounds)

    west = region(2, "north", "south").model_copy(update={"sources": flat.silos["south-2"].sources})
    tree = flat.model_copy(update={"silos": {"west": west, "far": region(1, "east", "north-2")}})
    here = run(tree, tmp_path / "here", workers=0)
    there = over_the_network(tree, tmp_path / "there", log)
    assert same(weights(here.folder / "model"), weights(there.folder / "model"))
    assert here.metrics == there.metrics
    assert here.own == there.own


def test_the_deadlines_of_a_region_end_before_its_parents(federation: Build, tmp_path: Path, log: Any) -> None:
    """Two rounds of the region share the time of one round of its parent: half for the first, then what is left."""
    flat = federation(rounds=1, participation={"deadline": 3600.0}, evaluate={"every": 9, "share": 1.0})
    west = Node(silos={n: flat.silos[n] for n in ("north", "south")}, rounds=2)
    tree = flat.model_copy(update={"silos": {"west": west, "east": flat.silos["east"]}})
    kits = make_kits(tree, tmp_path / "kits")
    deadlines: dict[str, dict[int, float]] = {}

    def read_deadlines(folder: Path, node: str) -> None:
        with closing(sqlite3.connect(folder / "journal.sqlite")) as journal:
            query = "select round, sent, deadline from requests where node=? and kind='Train'"
            rows = journal.execute(query, (node,))
            deadlines[node] = {round: deadline - sent for round, sent, deadline in rows}

    with regions(tree, kits, tmp_path / "regions", log.say), joined(tree, kits, tmp_path / "silos", log.say):
        outcome = serve(tree, Kit(kits / COORDINATOR), tmp_path / "run", None, [log])
        read_deadlines(outcome.folder / "server", "west")
        [below] = (tmp_path / "regions" / "west" / "server").glob("*/journal.sqlite")
        read_deadlines(below.parent, "north")
    assert deadlines["west"] == {1: pytest.approx(3600, abs=60)}
    assert deadlines["north"][1] <= 0.9 * 3600 / 2
    assert deadlines["north"][1] > 0.5 * 3600 / 2, "unless the machine was very slow"
    assert deadlines["north"][1] < deadlines["north"][2] <= 0.9 * 3600


def test_old_uploads_and_replies_are_deleted(federation: Build, tmp_path: Path, log: Any) -> None:
    """After a run only the uploads and the stored replies of the last round are left."""
    settings = federation(rounds=4, evaluate={"every": 1, "share": 1.0})
    outcome = over_the_network(settings, tmp_path, log)
    files = [file for file in (outcome.folder / "server" / "blobs").rglob("*") if file.is_file()]
    assert len(files) <= 3 * 5, "an update and its text, two scores of every silo"
    assert not any(file.suffix == ".part" for file in files)
    for silo in settings.silos:
        [replies] = (tmp_path / "silos" / silo / "runs").glob("*/replies")
        assert len(list(replies.iterdir())) <= 4
