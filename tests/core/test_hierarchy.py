"""Runs on trees whose nodes have data, settings and models of their own."""

from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from hansa.client.host import SiloHost
from hansa.client.runtime import Runtime
from hansa.client.training import Optimizer
from hansa.config.sections import Privacy, Server
from hansa.core.errors import ConfigError
from hansa.core.messages import Train
from hansa.core.participation import Participation
from hansa.core.schedules import Schedule, schedule_factor
from hansa.links.local import LocalLink
from hansa.runs.compare import compare, variant
from hansa.runs.run import run
from hansa.runs.topology import own_models
from tests.conftest import Build, same, weights
from tests.core.trees import LEAVES, run_over, select


def test_a_run_trains_every_node_and_scores_own_and_global_models(tree: Build, tmp_path: Path) -> None:
    outcome = run(tree(), tmp_path / "run", workers=0)
    assert set(outcome.metrics) == set(LEAVES)
    own = select(outcome.folder, "select distinct grp from metrics where split='own test'")
    assert {name for (name,) in own} == {"root", "west", "east", *LEAVES}
    heard = select(outcome.folder, "select sum(weight) from attention group by round, node, stage, layer")
    assert heard
    assert all(total == pytest.approx(1.0, abs=1e-6) for (total,) in heard)
    models = [AutoModelForCausalLM.from_pretrained(outcome.folder / f) for f in ("model", "silos/west/model")]
    assert models[0].num_parameters() == models[1].num_parameters()
    assert not same(weights(outcome.folder / "model"), weights(outcome.folder / "silos/north/model"))
    for node in ("west", "north"):
        assert score(outcome.folder, node) == pytest.approx(own_score(tree(), outcome.folder, node), abs=1e-5)


TEXT = "wind and snow"


def score(folder: Any, node: Any) -> Any:
    """Log-likelihood of a text by the exported folder alone, as lm-evaluation-harness would load it."""
    tokenizer = AutoTokenizer.from_pretrained(folder / "silos" / node / "model")
    model = AutoModelForCausalLM.from_pretrained(folder / "silos" / node / "model").eval()
    ids = tokenizer(TEXT, return_tensors="pt").input_ids
    with torch.no_grad():
        return float(model(ids, labels=ids).loss)


def own_score(settings: Any, folder: Any, node: Any) -> Any:
    """The same by the node's model as the run remembers it."""
    host = SiloHost(Runtime(settings, folder))
    runtime = host.runtime
    runtime.learner.state.write(dict(own_models(host, settings.silos, settings.rounds))[node])
    ids = runtime.vocabulary.tokenizer(TEXT, return_tensors="pt").input_ids
    with torch.no_grad():
        return float(runtime.learner.model.eval()(ids, labels=ids).loss)


def test_any_number_of_workers_and_the_wire_give_the_same_bits(tree: Build, tmp_path: Path) -> None:
    settings = tree(
        train={"optimizer": "adamw", "lr": 3e-3, "batch": 8, "samples": {"floor": 16}, "keep_optimizer": True}
    )
    run(settings, tmp_path / "0", workers=0)
    run(settings, tmp_path / "2", workers=2)
    run_over(settings, tmp_path / "wire", lambda host: LocalLink(host.answer, True))
    for part in ("model", "silos/west/model", "silos/south-2/model"):
        first = weights(tmp_path / "0" / part)
        assert same(first, weights(tmp_path / "2" / part))
        assert same(first, weights(tmp_path / "wire" / part))


SLOW_EAST = {"method": {"name": "worldlm", "buffer": 1}, "simulate": {"delay": {"east": 2.5}}}


@pytest.mark.parametrize(("inner_rounds", "more"), [(2, {}), (1, SLOW_EAST)])
def test_a_run_that_was_cut_resumes_to_the_same_bits(tree: Build, tmp_path: Path, inner_rounds: Any, more: Any) -> None:
    training = {"optimizer": "adamw", "lr": 3e-3, "batch": 8, "samples": {"floor": 16}, "keep_optimizer": True}
    settings = tree(rounds=4, checkpoint={"every": 2}, train=training, **more)
    silos = {name: node.model_copy(update={"rounds": inner_rounds}) for name, node in settings.silos.items()}
    settings = settings.model_copy(update={"silos": silos})
    whole = run(settings, tmp_path / "whole", workers=0).folder

    class Stop:
        def on_round_end(self, run: Any, record: Any) -> None:
            if record.number == 3:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(settings, tmp_path / "cut", workers=0, callbacks=[Stop()])
    cut = run(settings, tmp_path / "cut", resume=True, workers=0).folder
    for part in ("model", "silos/east/model", "silos/north/model"):
        assert same(weights(whole / part), weights(cut / part))
    query = "select round, node, stage, layer, member, weight from attention order by 1, 2, 3, 4, 5"
    assert select(whole, query) == select(cut, query)


def failing(names: Any) -> Any:
    """A link to silos of which some always fail."""

    def answer(host: Any, name: str) -> Any:
        def fail(request: Any) -> None:
            raise RuntimeError("no power")

        return fail if name in names else host.answer(name)

    return answer


def over_failing(settings: Any, folder: Any, names: Any) -> Any:
    """The named silos answer what comes before the first round, and fail in every round."""
    answer = failing(names)

    def link_of(host: Any) -> Any:
        def find(name: str) -> Any:
            def either(request: Any) -> Any:
                return answer(host, name)(request) if isinstance(request, Train) else host.answer(name)(request)

            return either

        return LocalLink(find)

    return run_over(settings, folder, link_of)


def test_a_lost_child_does_not_stall_the_others_and_its_reason_is_kept(tree: Build, tmp_path: Path) -> None:
    over_failing(tree(), tmp_path / "run", {"north"})
    lost = select(tmp_path / "run", "select node, text from events where kind='lost'")
    assert any(
        node == "north" and why.startswith("below west: it failed twice: RuntimeError: no power") for node, why in lost
    )
    assert not any(node in ("west", "east") for node, _ in lost)


def test_a_region_whose_children_all_fail_is_survived(tree: Build, tmp_path: Path) -> None:
    over_failing(tree(), tmp_path / "run", {"south", "south-2"})
    lost = dict(select(tmp_path / "run", "select node, text from events where kind='lost'"))
    assert "region 'east'" in lost["east"]
    assert "no power" in lost["east"]
    assert len(select(tmp_path / "run", "select 1 from rounds")) == 2


def test_a_region_whose_own_training_fails_goes_on_with_its_children(tree: Build, tmp_path: Path) -> None:
    over_failing(tree(), tmp_path / "run", {"west"})
    lost = dict(select(tmp_path / "run", "select node, text from events where kind='lost'"))
    assert "its own training" in lost["west"]


def kind(request: Any) -> Any:
    """A request's type; a `Train` that comes from a parent in the tree is told apart."""
    own = isinstance(request, Train) and request.subtree is not None
    return "Train from parent" if own else type(request).__name__


class Noting(LocalLink):
    """Remembers until when each node was given time."""

    def __init__(self, find: Any, seen: Any) -> None:
        super().__init__(find)
        self.seen = seen

    def ask(self, asks: Any, until: Any) -> Any:
        self.seen += [(node, kind(request), until) for node, request in asks.items()]
        return super().ask(asks, until)


def test_a_deadline_reaches_down_the_tree(tree: Build, tmp_path: Path) -> None:
    settings = tree(rounds=1, participation={"deadline": 600.0})
    west = settings.silos["west"].model_copy(update={"participation": Participation()})
    east = settings.silos["east"].model_copy(update={"participation": Participation(deadline=60.0)})
    settings = settings.model_copy(update={"silos": {"west": west, "east": east}})
    seen: list[Any] = []
    began = monotonic()
    run_over(settings, tmp_path / "run", lambda host: Noting(host.answer, seen))
    ends = {(node, what): until for node, what, until in seen if what.startswith("Train")}
    assert ends["root", "Train"] is None, "the root itself waits for its own steps"
    for node in (
        ("north", "Train from parent"),
        ("north-2", "Train from parent"),
        ("west", "Train"),
        ("east", "Train"),
    ):
        assert began < ends[node] < monotonic() + 0.95 * 600, (
            "less than the root gives: the region has work to do after"
        )
    assert ends["south", "Train from parent"] < monotonic() + 60, "a region's own deadline, where it comes first"


def test_a_region_that_is_out_of_time_answers_with_the_rounds_it_has_done(
    tree: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tree(rounds=1, participation={"deadline": 600.0})
    silos = {name: node.model_copy(update={"rounds": 3}) for name, node in settings.silos.items()}
    worked: list[Any] = []

    class Slow(Noting):
        def ask(self, asks: Any, until: Any) -> Any:
            yield from super().ask(asks, until)
            if "south" in asks and kind(asks["south"]) == "Train from parent" and not monkeypatched:
                monkeypatched.append(monkeypatch.setattr("hansa.core.inner_node.monotonic", lambda: monotonic() + 1e6))

    monkeypatched: list[Any] = []
    settings = settings.model_copy(update={"silos": {"east": silos["east"]}})
    run_over(settings, tmp_path / "run", lambda host: Slow(host.answer, worked))
    assert [node for node, what, _ in worked if what == "Train from parent"] == ["south", "south-2"], (
        "one round of three"
    )
    assert not select(tmp_path / "run", "select 1 from events where kind='lost'")


def test_delays_of_leaves_are_felt_at_the_root(tree: Build, tmp_path: Path) -> None:
    """By hand: a region's round is as long as its slowest leaf; two are twice as long; a delay of its own is final."""
    for rounds, delay, expected in (
        (1, {"south": 5.0}, 5.0),
        (2, {"south": 5.0}, 10.0),
        (2, {"south": 5.0, "east": 3.0}, 3.0),
    ):
        settings = tree(rounds=1, simulate={"delay": delay})
        silos = settings.silos | {"east": settings.silos["east"].model_copy(update={"rounds": rounds})}
        folder = run(
            settings.model_copy(update={"silos": silos}), tmp_path / f"{rounds}-{len(delay)}", workers=0
        ).folder
        assert select(folder, "select clock from rounds") == [(expected,)]


def test_with_a_buffer_the_region_of_a_slow_leaf_comes_late_and_the_other_does_not_wait(
    tree: Build, tmp_path: Path
) -> None:
    settings = tree(rounds=3, method={"name": "worldlm", "buffer": 1}, simulate={"delay": {"south": 2.5}})
    folder = run(settings, tmp_path / "run", workers=0).folder
    assert select(folder, "select round, node from traffic where node in ('west', 'east')") == [
        (1, "west"),
        (2, "west"),
        (3, "east"),
    ]
    assert select(folder, "select clock from rounds") == [(1.0,), (2.0,), (2.5,)]


def test_whom_a_private_leaf_listens_to_stays_with_it(tree: Build, tmp_path: Path) -> None:
    settings = tree(rounds=1, root=None)
    below = {n: node.model_copy(update={"privacy": Privacy()}) for n, node in settings.silos["west"].silos.items()}
    below["north-2"] = settings.silos["west"].silos["north-2"]
    west = settings.silos["west"].model_copy(update={"silos": below, "mixture": False})
    folder = run(
        settings.model_copy(update={"silos": settings.silos | {"west": west}}), tmp_path / "r", workers=0
    ).folder
    told = {node for (node,) in select(folder, "select distinct node from attention where stage='down'")}
    assert told == {"west", "east", "north-2", "south", "south-2"}


def test_the_baselines_of_a_tree_have_its_nodes_and_sequential_steps(tree: Build, tmp_path: Path) -> None:
    settings = tree(rounds=2)
    beside, pooled = variant(settings, "flat"), variant(settings, "pooled")
    assert set(beside.silos) == {"all", "west", "east", *LEAVES}
    assert len(beside.silos["west"].sources) == 2
    assert (beside.rounds, pooled.rounds) == (6, 6), "root, region, leaf: three stages in each of two rounds"
    assert variant(tree(root=None), "flat").rounds == 4
    assert variant(tree(method={"name": "worldlm", "order": "parallel"}), "flat").rounds == 2
    outcomes, _ = compare(tree(rounds=1), ["worldlm", "flat", "pooled"], tmp_path / "out", 0, lambda _: ())
    assert all(set(outcome.metrics) == set(LEAVES) for outcome in outcomes.values())
    seen = {n: select(outcome.folder, "select sum(seen) from rounds")[0][0] for n, outcome in outcomes.items()}
    assert seen == {"worldlm": 7 * 16, "flat": 3 * 7 * 16, "pooled": 3 * 16}
    with pytest.raises(ConfigError, match="baselines of a tree"):
        variant(pooled, "flat")


def test_partial_participation_and_quorum_are_a_regions_own(tree: Build, tmp_path: Path) -> None:
    settings = tree(rounds=3)
    strict = settings.silos["east"].model_copy(update={"participation": Participation(quorum=1.0)})
    few = settings.silos["west"].model_copy(update={"participation": Participation(count=1)})
    settings = settings.model_copy(update={"silos": {"west": few, "east": strict}})
    over_failing(settings, tmp_path / "run", {"south"})
    heard = select(tmp_path / "run", "select distinct round, member from attention where node='west' and stage='up'")
    assert len([1 for _, member in heard if member != "west"]) == 3, "one child of two in each of three rounds"
    lost = dict(select(tmp_path / "run", "select node, text from events where kind='lost'"))
    assert "1 of 2 sent a valid update, 2 needed" in lost["east"]


def test_low_rank_additions_of_the_last_blocks_are_key_layers(tree: Build, tmp_path: Path) -> None:
    base = run(tree(rounds=1), tmp_path / "base", workers=0).folder
    model = {"path": str(base / "model"), "adapt": "lora", "rank": 2}
    outcome = run(tree(model=model, tokenizer={}), tmp_path / "lora", workers=0)
    layers = select(outcome.folder, "select distinct layer from attention")
    assert layers == [("block.1",)]
    from transformers import AutoModelForCausalLM

    AutoModelForCausalLM.from_pretrained(outcome.folder / "silos/north/model")


def test_the_learning_rate_follows_the_sequential_steps_of_the_whole_tree(
    tree: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root, regions and leaves take two steps each, one level after another: six of a round, twelve in all."""
    seen: list[float] = []
    rate = Optimizer.rate

    def noting(optimizer: Optimizer, lr: float) -> None:
        seen.append(lr)
        rate(optimizer, lr)

    monkeypatch.setattr(Optimizer, "rate", noting)
    training = {"optimizer": "adamw", "lr": 1.0e-3, "batch": 8, "samples": {"floor": 16}}
    run(tree(train=training | {"schedule": {"kind": "cosine", "warmup": 3, "final": 0.1}}), tmp_path / "run", workers=0)
    expected = [schedule_factor(Schedule(kind="cosine", warmup=3, final=0.1), step, 12) * 1e-3 for step in range(1, 13)]
    assert sorted(set(np.round(seen, 9))) == sorted(set(np.round(expected, 9)))
    assert seen[:2] == pytest.approx(expected[:2]), "the root begins"
    assert len(seen) == 2 * 2 * 7


def test_baselines_of_a_tree_pool_the_files_once(tree: Build, tmp_path: Path) -> None:
    outcome = run(tree(kind="central"), tmp_path / "central", workers=0)
    assert set(outcome.metrics) == set(LEAVES)
    alone = run(tree(kind="per-silo"), tmp_path / "alone", workers=0)
    assert (alone.folder / "silos/west/model").is_dir()


def test_a_nodes_own_settings_are_its_own(tree: Build, tmp_path: Path) -> None:
    settings = tree()
    plain = run(settings, tmp_path / "plain", workers=0).folder
    east = settings.silos["east"].model_copy(update={"server": Server(optimizer="sgd", lr=1.0)})
    changed = run(
        settings.model_copy(update={"silos": settings.silos | {"east": east}}), tmp_path / "own", workers=0
    ).folder
    assert not same(weights(plain / "silos/east/model"), weights(changed / "silos/east/model"))
    first = "select weight from attention where round=1 and node='west'"
    assert select(plain, first) == select(changed, first), "the other region's first round is as it was"
