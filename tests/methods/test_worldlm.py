"""WorldLM: layer attention and the whole recursion against a second writing of Algorithm 1; limits and controls."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hansa.client.state import StateFolder
from hansa.core.errors import ConfigError
from hansa.core.hierarchy import LayerSharing, adopt_parent, pack, unpack
from hansa.core.messages import SubtreePart, Train, Update, no_tensors
from hansa.core.method import Residual
from hansa.core.participation import Assignment, Plan
from hansa.core.round import Round, Turn
from hansa.core.simulation import Simulation
from hansa.core.state import HIERARCHY
from hansa.methods.fedavg import ServerSgd
from hansa.methods.worldlm import CHUNK, Cosine, LayerAttention, WorldLM, last_blocks
from tests.methods.toy_tree import BACKBONE, KEYS, START, TREE, ToyTree, pushed, tensors

# ── a second writing, straight from the paper's lines, in numpy ───────────────────────────────────────────────────


def cos(a: Any, b: Any) -> Any:
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


def layer_attn(query: Any, members: Any) -> Any:
    scores = np.exp([cos(query, m) for m in members])
    return sum(weight * m for weight, m in zip(scores / scores.sum(), members, strict=True))


class Paper:
    def __init__(self, v: Any = 1, lr: Any = 0.2, mu: Any = 0.9) -> None:
        self.v, self.lr, self.mu = v, lr, mu
        self.model = {n: START.copy() for n in ("root", "west", "east", "a", "b", "c", "d")}
        self.momentum = {n: np.zeros(7) for n in TREE}
        self.children: dict[tuple[str, str], Any] = {}
        self.down: list[Any] = []

    def root(self, round: int) -> None:
        up = self.rounds("root", self.down, round)
        self.down = up

    def fit(self, q: Any, parent: Any, d_a: Any, d_r: Any, round: int) -> Any:
        own = self.model[q].copy()
        for name, at in KEYS.items():
            own[at] = layer_attn(own[at], [own[at], parent[at], *(v for v, k, _ in d_a if k == name)])
        own[BACKBONE] = parent[BACKBONE]
        self.model[q] = own
        if q not in TREE:
            self.model[q] = pushed(q, own, round)
            return []
        return self.rounds(q, d_r, round)

    def rounds(self, q: Any, d_r: Any, round: int) -> Any:
        before = self.model[q].copy()
        b = self.model[q] = pushed(q, self.model[q], round)
        routed: dict[str, list[Any]] = {c: [] for c in TREE[q]}
        for v, k, origin in d_r:
            known = {c: self.children.get((q, c), before)[KEYS[k]] for c in TREE[q]}
            routed[max(TREE[q], key=lambda c: cos(v, known[c]))].append((v, k, origin))
        up, got = [], {}
        for c in TREE[q]:
            leaf = c not in TREE
            up += self.fit(c, b, routed[c] if leaf else [], [] if leaf else routed[c], round)
            got[c] = self.children[q, c] = self.model[c].copy()
        delta = np.mean([got[c][BACKBONE] - b[BACKBONE] for c in TREE[q]], axis=0)
        self.momentum[q] = self.mu * self.momentum[q] - delta
        new = b.copy()
        new[BACKBONE] -= self.lr * self.momentum[q]
        picked = []
        for name, at in KEYS.items():
            p = [b[at], *(got[c][at] for c in TREE[q])]
            new[at] = np.mean([layer_attn(x, p) for x in p], axis=0)
            ranked = sorted(TREE[q], key=lambda c: cos(new[at], got[c][at]))
            picked += [(got[c][at], name, c) for c in ranked[: self.v]]
        self.model[q] = new
        return picked + up


# ── the implementation, with the same stand-in for training ────────────────────────────────────────────────────────


def test_the_recursion_is_the_papers(tmp_path: Path) -> None:
    paper, real = Paper(), ToyTree(tmp_path)
    for number in (1, 2, 3, 4):
        paper.root(number)
        record = real.round()
        assert not record.failed
        assert not record.failures
        for name, expected in paper.model.items():
            np.testing.assert_allclose(real.model(name).numpy(), expected, atol=2e-5, err_msg=f"{name}, {number}")
    origins = [name.split("|")[2] for name in real.state.slots[HIERARCHY].waiting.layout.names]
    assert sorted(origin for *_, origin in paper.down) == sorted(o.rpartition("/")[2] for o in origins)


@pytest.mark.parametrize("change", [{"residuals": 0}, {"temperature": 0.2}, {"similarity": "moved"}, {"back": False}])
def test_every_setting_beyond_the_paper_changes_the_result(tmp_path: Path, change: Any) -> None:
    """The control: with another setting, the second writing is no longer met."""
    paper = Paper()
    real = ToyTree(tmp_path, WorldLM(key_layers=("block.1", "block.2"), **change).build())
    for number in (1, 2, 3):
        paper.root(number)
        real.round()
    gap = max(float(np.abs(real.model(n).numpy() - m).max()) for n, m in paper.model.items())
    assert gap > 1e-3


def test_without_key_layers_and_with_server_rate_one_it_is_the_mean_of_models(tmp_path: Path) -> None:
    method = replace(WorldLM(key_layers=0.0).build(), server=ServerSgd())
    real = ToyTree(tmp_path, method, {"root": ["a", "b", "c"]}, data=False)
    real.round()
    expected = np.mean([pushed(n, START.astype(np.float32), 1) for n in "abc"], axis=0)
    np.testing.assert_allclose(real.model("root").numpy(), expected, atol=1e-6)


def test_in_parallel_the_node_is_one_more_child(tmp_path: Path) -> None:
    method = replace(WorldLM(key_layers=0.0, order="parallel").build(), server=ServerSgd())
    real = ToyTree(tmp_path, method, {"root": ["a", "b"]})
    real.round()
    expected = np.mean([pushed(n, START.astype(np.float32), 1) for n in ("root", "a", "b")], axis=0)
    np.testing.assert_allclose(real.model("root").numpy(), expected, atol=1e-6)


def test_a_slow_region_contributes_when_it_is_done_and_the_older_the_less(tmp_path: Path) -> None:
    """By hand: the fast child moves the model alone until the slow one arrives, three versions late, at half weight."""
    method = replace(WorldLM(key_layers=0.0, buffer=1).build(), server=ServerSgd())
    simulate = Simulation(delay={"fast": 1.0, "slow": 3.5})
    real = ToyTree(tmp_path, method, {"root": ["fast", "slow"]}, data=False, simulate=simulate)
    models = [START.astype(np.float32)]  # by version
    course = [("fast", 1, 0), ("fast", 2, 1), ("fast", 3, 2), ("slow", 3.5, 0), ("fast", 4, 3)]
    for number, (node, clock, version) in enumerate(course, 1):
        record = real.round()
        assert (record.cohort, record.clock) == ([node], clock)
        weight = (1 + number - 1 - version) ** -0.5
        moved = models[version] - pushed(node, models[version], number)
        models.append(models[-1] - weight * moved)
        np.testing.assert_allclose(real.model("root").numpy(), models[-1], atol=1e-5, err_msg=str(number))


@pytest.mark.parametrize("staleness", [0, 3])
def test_key_layers_that_come_late_count_less_too(tmp_path: Path, staleness: Any) -> None:
    """K_c ← K_q + (1 + τ)^−½·(K_c − K_q)."""
    method = WorldLM(key_layers=("block.1", "block.2"), buffer=1).build()
    real = ToyTree(tmp_path, method, {"root": ["slow"]}, data=False)
    old, now, moved = (tensors(START + k) for k in (0.0, 2.0, 0.5))
    real.state.model = now
    assignment = Assignment("slow", 1, 0, old, staleness)
    round = Round(real.root.server, real.state, Turn(1), Plan(["slow"], [[assignment]]))
    sharing = LayerSharing(real.hierarchy, real.keys, None, [])
    sharing.prepare(round)
    sharing.accept(assignment, replace(Update(moved, 1, 1, 1, 0.0, 0.0), staleness=staleness))
    sharing.finish(round)
    kept = real.state.slots[HIERARCHY].children["slow"]
    weight = (1 + staleness) ** -0.5
    assert method.weighting.weight(replace(Update(moved, 1, 1, 1, 0.0, 0.0), staleness=staleness)) == weight
    for layer, here in real.keys.read(now).items():
        theirs = real.keys.read(old)[layer] - real.keys.read(moved)[layer]
        torch.testing.assert_close(kept[layer], here + weight * (theirs - here))


def test_long_layers_are_compared_as_short_ones_are() -> None:
    """Piece by piece, in double precision: the cosines and the attention of layers that no piece holds."""
    rng = np.random.default_rng(0)
    rows = [rng.normal(size=2 * CHUNK + 7).astype(np.float32) + 0.2 for _ in range(3)]
    members = {str(i): {"l": torch.tensor(row)} for i, row in enumerate(rows)}
    base = {"l": torch.zeros(2 * CHUNK + 7)}
    exact = [row.astype(np.float64) for row in rows]
    cosines = Cosine().between([members["0"]["l"]], [m["l"] for m in members.values()], base["l"])[0]
    np.testing.assert_allclose(cosines.numpy(), [cos(exact[0], x) for x in exact], atol=1e-12)
    merged, _ = LayerAttention().merge("0", members, base)
    np.testing.assert_allclose(merged["l"].numpy(), np.mean([layer_attn(x, exact) for x in exact], axis=0), atol=1e-6)


def test_a_buffer_of_all_children_is_waiting_for_all(tmp_path: Path) -> None:
    """The limit, where all are equally fast and the root has nothing to train on."""
    waits = ToyTree(tmp_path / "a", replace(WorldLM(key_layers=0.0).build(), server=ServerSgd()), data=False)
    buffered = ToyTree(
        tmp_path / "b", replace(WorldLM(key_layers=0.0, buffer=2).build(), server=ServerSgd()), data=False
    )
    for _ in range(3):
        waits.round()
        buffered.round()
    np.testing.assert_allclose(waits.model("root").numpy(), buffered.model("root").numpy(), atol=1e-6)


vectors = st.lists(st.lists(st.floats(-3, 3, width=32), min_size=6, max_size=6), min_size=2, max_size=5)


@given(vectors)
def test_layer_attention_agrees_with_a_second_writing(rows: Any) -> None:
    rows = [np.array(row) + np.arange(1, 7) * 1e-2 for row in rows]
    members = {str(i): {"l": torch.tensor(row, dtype=torch.float32)} for i, row in enumerate(rows)}
    base = {"l": torch.zeros(6)}
    if any(np.linalg.norm(row) < 1e-3 for row in rows):
        return
    exact = [m["l"].double().numpy() for m in members.values()]
    adopted, weights = LayerAttention().adopt(members["0"], {n: m for n, m in members.items() if n != "0"}, base)
    np.testing.assert_allclose(adopted["l"].numpy(), layer_attn(exact[0], exact), atol=1e-6)
    assert sum(weights["l"].values()) == pytest.approx(1.0, abs=1e-9)
    merged, _ = LayerAttention().merge("0", members, base)
    np.testing.assert_allclose(merged["l"].numpy(), np.mean([layer_attn(x, exact) for x in exact], axis=0), atol=1e-6)
    turned, _ = LayerAttention().merge("0", dict(reversed(members.items())), base)
    np.testing.assert_allclose(merged["l"].numpy(), turned["l"].numpy(), atol=1e-6)


def test_what_moved_is_compared_where_it_is_asked_for() -> None:
    base, one, other = torch.full((4,), 9.0), torch.tensor([1.0, 0, 0, 0]), torch.tensor([-1.0, 0, 0, 0])
    absolute = float(Cosine().between([base + one], [base + other], base))
    moved = float(Cosine(True).between([base + one], [base + other], base))
    assert absolute > 0.98
    assert moved == pytest.approx(-1.0)


def test_residuals_keep_away_from_their_senders_branch_if_asked() -> None:
    near, far = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    children = {"west": {"l": near}, "east": {"l": far}}
    residual, base = Residual("l", "west/fr", near), {"l": torch.zeros(2)}
    assert list(LayerAttention().route([residual], children, base)) == ["west"]
    assert list(LayerAttention(back=False).route([residual], children, base)) == ["east"]
    assert LayerAttention(back=False).route([residual], {"west": {"l": near}}, base) == {}


def test_a_residual_for_a_layer_the_receiver_lacks_is_refused(tmp_path: Path) -> None:
    real = ToyTree(tmp_path)
    sent = pack([Residual("block.9", "east/c", torch.ones(5)), Residual("block.2", "east/d", torch.ones(5))])
    found, reason = unpack(sent, real.keys)
    assert [r.origin for r in found] == ["east/d"]
    assert "block.9" in reason
    assert "east/c" in reason
    reply = real.leaf("a", Train(1, tensors(START), subtree=SubtreePart("west", sent)))
    assert isinstance(reply, Update)
    assert reply.layers is not None
    assert "block.9" in reply.layers.refused["a"]
    assert list(reply.layers.attention["down a"]["block.2"]) == ["a", "west", "east/d (residual 1)"]
    assert list(reply.layers.attention["down a"]["block.1"]) == ["a", "west"]
    for wrong in (torch.ones(4), torch.full((5,), torch.nan)):
        assert unpack(pack([Residual("block.2", "c", wrong)]), real.keys)[0] == []


def test_a_nodes_backbone_is_its_parents(tmp_path: Path) -> None:
    real = ToyTree(tmp_path)
    request = Train(1, tensors(START + 1), subtree=SubtreePart("west", no_tensors()))
    states = StateFolder(tmp_path / "nothing").newest()
    adopted = adopt_parent("a", real.hierarchy, real.keys, states, lambda: tensors(START), request, leaf=True)
    assert torch.equal(adopted.model.flat[BACKBONE], request.model.flat[BACKBONE])
    assert not torch.equal(adopted.model.flat[7:], request.model.flat[7:])


@pytest.mark.parametrize(
    ("blocks", "share", "expected"), [(12, 0.3, 4), (3, 0.3, 1), (2, 0.1, 1), (4, 1.0, 4), (4, 0.0, 0)]
)
def test_key_layers_are_the_last_blocks_and_never_fewer_than_one(blocks: Any, share: Any, expected: Any) -> None:
    parts = {f"h.{i}": f"block.{i}" for i in range(blocks)} | {"wte": "embeddings"}
    found = last_blocks(parts, share)
    assert found == [f"block.{i}" for i in range(blocks - expected, blocks)]


def test_key_layers_that_do_not_exist_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"block\.7.*block\.0 to block\.1"):
        last_blocks({"a": "block.0", "b": "block.1"}, ("block.7",))


def test_in_an_encoder_decoder_the_last_blocks_are_the_decoders() -> None:
    parts = {f"{side}{i}": f"{side}.block.{i}" for side in ("encoder", "decoder") for i in range(4)}
    assert last_blocks(parts, 0.3) == ["decoder.block.2", "decoder.block.3"]
