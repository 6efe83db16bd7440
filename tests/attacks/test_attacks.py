"""Attacks on small runs: a leak that is known is found, and where nothing can leak nothing is found."""

import json
from itertools import islice
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from typer.testing import CliRunner

from hansa.attacks import centroids, gradient, price
from hansa.attacks.inversion import nearest
from hansa.attacks.victim import VictimModel, table_rows, token_types
from hansa.cli.main import app
from hansa.client.host import SiloHost
from hansa.client.release_log import LoggedRelease, logged_releases
from hansa.config import file as federation_file
from hansa.config.federation import Federation
from hansa.config.file import parse
from hansa.core import representations
from hansa.core.errors import UserError
from hansa.privacy.dp.prices import exchange_price
from hansa.privacy.policy.preview import preview_policy
from hansa.privacy.policy.rules import Policy
from hansa.report import html
from hansa.runs.inference import open_run
from hansa.runs.ledger import Ledger
from hansa.runs.run import run
from tests.conftest import WORDS, write_words

runner = CliRunner()
QUICK = 6  # centroids


def federated(folder: Path, **settings: object) -> Federation:
    """Two silos with short labelled texts; the model is hardly trained."""
    folder.mkdir(exist_ok=True)
    silos = {
        name: {"train": str(write_words(folder / f"{name}.jsonl", WORDS[name], 60, labels=True))}
        for name in ("north", "south")
    }
    raw = {
        "name": "audited",
        "task": "classify",
        "tokenizer": {"size": 330, "min_count": 2},
        "data": {"max_length": 12, "valid": 0.0, "test": 0.2},
        "silos": silos,
        "method": {"name": "fedkc", "layer": "all", "q": 4, "floor": 1},
        "rounds": 1,
        "train": {"lr": 0.05, "batch": 4, "samples": {"floor": 8}},
        "release_log": {"knowledge": True},
    }
    return parse(raw | settings)


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of FedKC with all layers, with a release log."""
    folder = tmp_path_factory.mktemp("logged")
    return run(federated(folder / "data"), folder / "run", workers=0).folder


def test_all_layers_centroids_leak_and_the_control_succeeds(logged: Path) -> None:
    found = centroids.attack_knowledge(logged, "embedding-inversion", QUICK)
    curves = found["curves"]
    assert (found["layers"], found["centroids"]) == ("all", QUICK)
    assert curves["no averaging"]["same"][0] == 1.0, "a single text is read word for word"
    assert curves["attack"]["same"][0] > curves["random tokens"]["same"][0] + 0.5
    assert sum(size["centroids"] for size in found["sizes"]) == QUICK
    for curve in curves.values():
        for where in ("any", "same"):
            assert len(curve[where]) == 90
            assert curve[where] == sorted(curve[where])


def test_the_nearest_token_reads_single_texts_without_an_optimiser(logged: Path) -> None:
    found = centroids.attack_knowledge(logged, "nearest-token", QUICK)
    assert found["curves"]["no averaging"]["same"][0] == 1.0
    assert found["curves"]["attack"]["same"][0] > found["curves"]["random tokens"]["same"][0]


def test_where_the_control_fails_too_the_findings_say_so(tmp_path: Path) -> None:
    settings = federated(tmp_path / "data", method={"name": "fedkc", "layer": "last", "q": 2, "floor": 2})
    outcome = run(settings, tmp_path / "run", workers=0)
    found = centroids.attack_knowledge(outcome.folder, "nearest-token", 2)
    assert found["layers"] == "last"
    assert found["curves"]["no averaging"]["same"][0] < 0.5
    assert any("too weak to show that averaging protects" in line for line in found["reading"])


def test_noise_in_place_of_centroids_gives_nothing_away(
    logged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: the attack reads the centroid, not the texts that score it."""
    genuine = centroids.attack_knowledge(logged, "nearest-token", QUICK)["curves"]["attack"]["same"][0]
    load = vars(LoggedRelease)["tensors"].fget

    def noise(released: LoggedRelease) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(0)
        return {name: torch.randn(t.shape, generator=generator) for name, t in load(released).items()}

    monkeypatch.setattr(LoggedRelease, "tensors", property(noise))
    found = centroids.attack_knowledge(logged, "nearest-token", QUICK)["curves"]["attack"]["same"][0]
    assert found < 0.5 * genuine


def test_from_the_command_line_into_the_report(logged: Path) -> None:
    shown = runner.invoke(app, ["audit", "attack", "--kind", "nearest-token", "--centroids", "4", str(logged)])
    assert shown.exit_code == 0, shown.output
    for part in ("at its position", "most frequent tokens", "random tokens", "no averaging", "rare tokens recovered"):
        assert part in shown.stdout
    kept = json.loads((logged / "audit" / "nearest-token.json").read_text(encoding="utf-8"))
    assert kept["centroids"] == 4
    page = (logged / "report.html").read_text(encoding="utf-8")
    assert "Audit: Nearest token" in page
    assert "Hits@N at its position" in page
    again = runner.invoke(
        app, ["audit", "attack", "--kind", "nearest-token", "--centroids", "4", "--format", "json", str(logged)]
    )
    assert json.loads(again.stdout)["reading"] == kept["reading"]


def test_both_texts_of_a_pair_are_attacked(tmp_path: Path) -> None:
    """The control releases what the model computes of the pair; an attack without token types reads less."""
    files = {name: tmp_path / "data" / f"{name}.jsonl" for name in ("north", "south")}
    silos = {name: {"train": str(file), "second": "other"} for name, file in files.items()}
    settings = federated(tmp_path / "data", task="pairs", silos=silos, data={"max_length": 24, "test": 0.2})
    for file in files.values():
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        file.write_text("".join(json.dumps(row | {"other": row["text"]}) + "\n" for row in rows))
    runtime = open_run(run(settings, tmp_path / "run", workers=0).folder)
    resident = SiloHost(runtime).silo("north").resident
    model, held, words = runtime.learner.model.eval(), resident.examples("train"), len(runtime.vocabulary.special)
    cast(Any, model).bert.embeddings.token_type_embeddings.weight.data.mul_(20)
    assert token_types(runtime) == 2
    [[indices, batch]] = islice(resident.in_order(), 1)
    shown = representations.embed(model, batch.inputs)[0].detach()
    row = int(indices[0])
    found = VictimModel(model, words, True, 2).release(table_rows(held, row, words, 2))
    torch.testing.assert_close(found, shown[: len(found)])

    def read(types: int) -> float:
        victim = VictimModel(model, words, True, types)
        banned, mask = torch.from_numpy(runtime.vocabulary.special), torch.ones(1, len(found), dtype=torch.long)
        guessed = nearest(victim.encode, victim.table, found.unsqueeze(0), mask, banned)[0, :, 0]
        ordinary = ~runtime.vocabulary.special[held[row]]
        return float((guessed.numpy()[ordinary] == held[row][ordinary]).mean())

    assert read(2) == 1.0
    assert read(1) < 0.8


def test_without_a_release_log_the_error_says_how_to_get_one(tmp_path: Path) -> None:
    settings = federated(tmp_path / "data", release_log={"knowledge": False}, rounds=1, method="fedavg")
    outcome = run(settings, tmp_path / "run", workers=0)
    with pytest.raises(UserError, match=r"release log has no centroids.*release_log: \{knowledge: true\}"):
        centroids.attack_knowledge(outcome.folder, "embedding-inversion", QUICK)


def test_unknown_names_are_refused_in_a_sentence(logged: Path, tmp_path: Path) -> None:
    for arguments, sentence in (
        (["attack", "--kind", "nearest", str(logged)], "did you mean 'nearest-token'?"),
        (["attack", str(tmp_path)], "not a run directory"),
        (["attack", "--kind", "gradient-inversion", "--silo", "nort", str(logged)], "did you mean 'north'?"),
    ):
        result = runner.invoke(app, ["audit", *arguments])
        assert isinstance(result.exception, UserError)
        assert sentence in str(result.exception)


# ── updates ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_one_texts_update_is_read_whole_and_defences_hide_what_they_can(logged: Path) -> None:
    before = sorted(p for p in logged.rglob("*") if p.is_file() and "audit" not in p.parts)
    found = gradient.attack_update(logged, "north")
    rows = {(row["defence"], row["amount"]): row for row in found["rows"]}
    bare = rows["none", "one text"]
    assert bare["rows"] == 1.0, "rows of tokens that were not there do not move"
    assert bare["span"] > bare["frequent"]
    home = rows["frozen embeddings", "one text"]
    assert home["rows"] is None
    assert home["span"] == bare["span"], "the first block still leaks"
    assert rows["LoRA", "one text"]["rows"] is None
    assert rows["LoRA", "one text"]["span"] == 0.0, "its second matrix begins at zero, so the first does not move"
    assert rows["clipping to 1", "one text"]["rows"] == 1.0, "clipping alone only scales"
    assert rows["clipping to 1, noise 0.1×", "one text"]["rows"] < 0.5
    costs = [row["epsilon"] for row in found["rows"] if row["epsilon"] is not None]
    assert costs == sorted(costs, reverse=True)
    assert before == sorted(p for p in logged.rglob("*") if p.is_file() and "audit" not in p.parts)


def test_gradient_inversion_needs_a_method_with_updates(tmp_path: Path) -> None:
    outcome = run(federated(tmp_path / "data", method="alone", release_log={}), tmp_path / "run", workers=0)
    with pytest.raises(UserError, match="with method 'alone' no silo sends a plain update"):
        gradient.attack_update(outcome.folder, None)


# ── defences ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_positions_that_fewer_texts_than_the_floor_reach_are_withheld(tmp_path: Path) -> None:
    """Otherwise the end of a centroid would be the longest text alone."""
    settings = federated(tmp_path / "data", method={"name": "fedkc", "layer": "all", "q": 2, "floor": 5})
    rows = [json.loads(line) for line in (tmp_path / "data" / "north.jsonl").read_text().splitlines()]
    for number, row in enumerate(rows):
        row["text"] = " ".join(row["text"].split()[: 8 if number == 0 else 3])
    (tmp_path / "data" / "north.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    outcome = run(settings, tmp_path / "run", workers=0)
    held = SiloHost(open_run(outcome.folder)).silo("north").resident.examples("train")
    shared = [one for one in logged_releases(outcome.folder, "knowledge") if one.silo == "north"]
    assert shared
    for one in shared:
        for length, samples in zip(one.notes["lengths"], one.notes["samples"], strict=True):
            reached = [sum(held.lengths[i] > position for i in samples) for position in range(12)]
            assert length == sum(count >= 5 for count in reached)


def test_noise_on_centroids_hides_tokens_and_its_cost_is_in_the_ledger_and_the_report(tmp_path: Path) -> None:
    method = {"name": "fedkc", "layer": "all", "q": 4, "floor": 2, "noise": {"multiplier": 1.0, "seeded": True}}
    settings = federated(tmp_path / "data", method=method)
    outcome = run(settings, tmp_path / "run", workers=0)
    found = centroids.attack_knowledge(outcome.folder, "nearest-token", QUICK)
    assert found["curves"]["attack"]["same"][0] < 0.3
    ledger = Ledger(outcome.folder)
    [fact] = [value for name, value in ledger.facts().items() if name.startswith("privacy of ")]
    ledger.close()
    expected = exchange_price(settings, 1)
    assert expected is not None
    assert fact["epsilon"] == pytest.approx(expected.epsilon)
    page = html.write([("run", outcome.folder)], tmp_path / "report.html").read_text(encoding="utf-8")
    assert "one training sample, replaced by another" in page


def test_the_price_of_every_defence_in_one_table_and_one_curve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(price, "FLOORS", (1000,))
    monkeypatch.setattr(price, "NOISES", (1.0,))
    monkeypatch.setattr(price, "CENTROIDS", 2)
    file = tmp_path / "federation.yaml"
    file.write_text(federation_file.dump(federated(tmp_path / "data")), encoding="utf-8")
    out = tmp_path / "price"
    shown = runner.invoke(app, ["audit", "price", str(file), "--out", str(out), "--workers", "0", "--format", "json"])
    assert shown.exit_code == 0, shown.output
    found = json.loads(shown.stdout)
    bare, floor, noise = found["rows"]
    assert bare["shared"] > 0
    assert (floor["shared"], floor["same"]) == (0, 0.0)
    assert noise["same"] < bare["same"]
    assert noise["epsilon"] > 0
    assert (bare["epsilon"], floor["epsilon"]) == (None, None)
    points = {row["defence"]: [row["same"], row["score"]] for row in found["rows"]}
    assert found["curves"] == {
        "floor": sorted([points["none"], points["floor 1000"]]),
        "noise": sorted([points["none"], points["noise 1"]]),
    }
    assert "Audit: Price" in (out / "report.html").read_text(encoding="utf-8")


def test_only_what_exchanges_centroids_has_a_price(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="method 'fedavg' shares no centroids"):
        price.defences(federated(tmp_path / "data", method="fedavg", release_log={}))


def test_a_policy_decides_about_centroids_and_their_price_before_training(tmp_path: Path) -> None:
    def verdicts(rule: str, **settings: object) -> dict[str, bool]:
        (tmp_path / "policy.yaml").write_text(f"rules: {{all: {{federations: any, methods: any, {rule}}}}}")
        found = preview_policy(Policy.read(tmp_path / "policy.yaml"), federated(tmp_path / "data", **settings), "north")
        return {one.request: one.verdict.allowed for one in found}

    release = "release: {tensors: any, samples: true, metrics: true, words: 2, labels: true, knowledge: %s}"
    assert not verdicts(release % "false")["ShareKnowledge"]
    assert verdicts(release % "true")["ShareKnowledge"]
    north, south = (
        {"train": str(tmp_path / "data" / f"{n}.jsonl"), "privacy": {"noise_multiplier": 50, "seeded": True}}
        for n in ("north", "south")
    )
    private = {"silos": {"north": north, "south": south}}
    for multiplier, kept in ((0.1, False), (50, True)):
        method = {"name": "fedkc", "noise": {"multiplier": multiplier}}
        found = verdicts(f"{release % 'true'}, require: {{epsilon: 8}}", method=method, **private)
        assert found["ShareKnowledge"] == kept
