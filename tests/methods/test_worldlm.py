"""WorldLM: layer attention and the whole recursion against a second writing of Algorithm 1; limits and controls."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hansa.client.state import StateStore
from hansa.config.federation import Federation
from hansa.config.nodes import Node
from hansa.core.errors import ConfigError
from hansa.core.hierarchy import Heard, KeyLayers, Region, Sent, agg_parent, fit_leaf, pack, unpack
from hansa.core.link import Answer
from hansa.core.messages import Fit, Train, Update, nothing
from hansa.core.method import Residual
from hansa.core.participation import Child
from hansa.core.round import Record
from hansa.core.seeds import stream
from hansa.core.tensors import Layout, Tensors
from hansa.links.local import LocalLink
from hansa.links.tree import TreeLink
from hansa.methods.fedavg import ServerSgd
from hansa.methods.worldlm import PIECE, Attention, Cosine, WorldLM, last_blocks

PARTS = {"emb": "embeddings", "h0": "block.0", "h1.w": "block.1", "h1.b": "block.1", "h2": "block.2"}
LAYOUT = Layout(tuple(PARTS), ((3,), (4,), (2, 2), (3,), (5,)))
BACKBONE, KEYS = slice(0, 7), {"block.1": slice(7, 14), "block.2": slice(14, 19)}
TREE = {"root": ["west", "east"], "west": ["a", "b"], "east": ["c", "d"]}
START = stream(7, "start").normal(size=19)


def pushed(name: str, model: np.ndarray, round: int) -> np.ndarray:
    """What stands for training: each node pulls its model somewhere of its own."""
    return 0.8 * model + 0.6 * stream(7, name).normal(size=19) + 0.05 * stream(7, name, round).normal(size=19)


# ── a second writing, straight from the paper's lines, in numpy ───────────────────────────────────────────────────


def cos(a, b):
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


def layer_attn(query, members):
    scores = np.exp([cos(query, m) for m in members])
    return sum(weight * m for weight, m in zip(scores / scores.sum(), members, strict=True))


class Paper:
    def __init__(self, v=1, lr=0.2, mu=0.9):
        self.v, self.lr, self.mu = v, lr, mu
        self.model = {n: START.copy() for n in ("root", "west", "east", "a", "b", "c", "d")}
        self.momentum = {n: np.zeros(7) for n in TREE}
        self.children = {}
        self.down = []

    def root(self, round):
        up = self.rounds("root", self.down, round)
        self.down = up

    def fit(self, q, parent, d_a, d_r, round):
        own = self.model[q].copy()
        for name, at in KEYS.items():
            own[at] = layer_attn(own[at], [own[at], parent[at], *(v for v, k, _ in d_a if k == name)])
        own[BACKBONE] = parent[BACKBONE]
        self.model[q] = own
        if q not in TREE:
            self.model[q] = pushed(q, own, round)
            return []
        return self.rounds(q, d_r, round)

    def rounds(self, q, d_r, round):
        before = self.model[q].copy()
        b = self.model[q] = pushed(q, self.model[q], round)
        routed = {c: [] for c in TREE[q]}
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


# ── the real one, with the same stand-in for training ─────────────────────────────────────────────────────────────


def tensors(values):
    return Tensors(LAYOUT, torch.tensor(values, dtype=torch.float32))


class Fleeting:
    """An answer's tensors are gone when the next is asked for, as in the shared memory of a pool."""

    def __init__(self, link):
        self.link = link

    def ask(self, asks, until):
        for answer in self.link.ask(asks, until):
            yield answer
            answer.reply.gradient.flat.fill_(torch.nan)


class Real:
    def __init__(self, tmp_path, method=None, tree=TREE, data=True, **settings):
        self.method = method or WorldLM(key_layers=("block.1", "block.2")).build()
        self.keys = KeyLayers(LAYOUT, self.method.tree.keys(PARTS))
        self.folder, self.tree, self.data = tmp_path, tree, data
        silos = {name: Node(sources=({"train": "x"},)) for name in tree["root"]}
        self.settings = Federation(silos=silos, rounds=9, **settings)
        self.leaves = Fleeting(LocalLink(lambda name: lambda request: self.leaf(name, request)))
        self.root = self.grow("root")
        self.moving = self.root.begin()

    def leaf(self, name, request):
        runtime = SimpleNamespace(keys=self.keys, start_of=lambda _: tensors(START), federation=self.settings)

        def train(request, received, remember=None):
            model = tensors(pushed(name, request.model.flat.double().numpy(), request.round))
            if remember:
                silo.memory.keep(request.round, remember(model), request.durable)
            sent = received.layout
            return Update(Tensors(sent, received.flat - model.only(sent.names).flat), 1, 1, 1, 0.0, 0.0)

        memory = StateStore(self.folder / name / "memory")
        silo = SimpleNamespace(name=name, method=self.method, site=runtime, memory=memory, train=train)
        return train(request, request.model) if isinstance(request, Train) else fit_leaf(silo, request)

    def grow(self, name):
        inner = {c: self.grow(c) for c in self.tree[name] if c in self.tree}
        members = {c: Child(1, 1, inner[c].steps if c in inner else 1, c not in inner) for c in self.tree[name]}
        link = TreeLink(self.leaves, {c: region.answer for c, region in inner.items()}) if inner else self.leaves
        own = Child(1, 1, 1) if self.data else None
        memory = StateStore(self.folder / name / "region")
        return Region(name, members, link, self.method, self.settings, 1, self.keys, tensors(START), memory, own)

    def round(self):
        return self.root.root_round(self.moving, 0)

    def model(self, name):
        if name == "root":
            return self.moving.model.flat
        kind = "region" if name in self.tree else "memory"
        return StateStore(self.folder / name / kind).recall(99)["tree.model"]


def test_the_recursion_is_the_papers(tmp_path):
    paper, real = Paper(), Real(tmp_path)
    for number in (1, 2, 3, 4):
        paper.root(number)
        record = real.round()
        assert not record.failed
        assert not record.lost
        for name, expected in paper.model.items():
            np.testing.assert_allclose(real.model(name).numpy(), expected, atol=2e-5, err_msg=f"{name}, {number}")
    origins = sorted(name.split("|")[2] for name in real.moving.state if name.startswith("residual."))
    assert sorted(origin for *_, origin in paper.down) == sorted(o.rpartition("/")[2] for o in origins)


@pytest.mark.parametrize("change", [{"residuals": 0}, {"temperature": 0.2}, {"similarity": "moved"}, {"back": False}])
def test_every_setting_beyond_the_paper_changes_the_result(tmp_path, change):
    """The control: with another setting, the second writing is no longer met."""
    paper = Paper()
    real = Real(tmp_path, WorldLM(key_layers=("block.1", "block.2"), **change).build())
    for number in (1, 2, 3):
        paper.root(number)
        real.round()
    gap = max(float(np.abs(real.model(n).numpy() - m).max()) for n, m in paper.model.items())
    assert gap > 1e-3


def test_without_key_layers_and_with_server_rate_one_it_is_the_mean_of_models(tmp_path):
    method = replace(WorldLM(key_layers=0.0).build(), server=ServerSgd())
    real = Real(tmp_path, method, {"root": ["a", "b", "c"]}, data=False)
    real.round()
    expected = np.mean([pushed(n, START.astype(np.float32), 1) for n in "abc"], axis=0)
    np.testing.assert_allclose(real.model("root").numpy(), expected, atol=1e-6)


def test_in_parallel_the_node_is_one_more_child(tmp_path):
    method = replace(WorldLM(key_layers=0.0, order="parallel").build(), server=ServerSgd())
    real = Real(tmp_path, method, {"root": ["a", "b"]})
    real.round()
    expected = np.mean([pushed(n, START.astype(np.float32), 1) for n in ("root", "a", "b")], axis=0)
    np.testing.assert_allclose(real.model("root").numpy(), expected, atol=1e-6)


def test_a_slow_region_contributes_when_it_is_done_and_the_older_the_less(tmp_path):
    """By hand: the fast child moves the model alone until the slow one arrives, three versions late, at half weight."""
    method = replace(WorldLM(key_layers=0.0, buffer=1).build(), server=ServerSgd())
    simulate = {"delay": {"fast": 1.0, "slow": 3.5}}
    real = Real(tmp_path, method, {"root": ["fast", "slow"]}, data=False, simulate=simulate)
    models = [START.astype(np.float32)]  # by version
    course = [("fast", 1, 0), ("fast", 2, 1), ("fast", 3, 2), ("slow", 3.5, 0), ("fast", 4, 3)]
    for number, (node, clock, version) in enumerate(course, 1):
        record = real.round()
        assert (record.cohort, record.clock) == ([node], clock)
        weight = (1 + number - 1 - version) ** -0.5
        moved = models[version] - pushed(node, models[version], number)
        models.append(models[-1] - weight * moved)
        np.testing.assert_allclose(real.model("root").numpy(), models[-1], atol=1e-5, err_msg=str(number))


@pytest.mark.parametrize("stale", [0, 3])
def test_key_layers_that_come_late_count_less_too(tmp_path, stale):
    """K_c ← K_q + (1 + τ)^−½·(K_c − K_q)."""
    method = WorldLM(key_layers=("block.1", "block.2"), buffer=1).build()
    root = Real(tmp_path, method, {"root": ["slow"]}, data=False).root
    old, now, moved = (tensors(START + k) for k in (0.0, 2.0, 0.5))
    heard = Heard(root, {"slow": Sent(old, stale), "root": Sent(now)}, Record(1, ["slow"]))
    [(update, weight)] = heard.updates(iter([Answer("slow", Update(moved, 1, 1, 1, 0.0, 0.0))]))
    assert (update.stale, weight) == (stale, (1 + stale) ** -0.5)
    for layer, here in root.keys.read(now).items():
        theirs = root.keys.read(old)[layer] - root.keys.read(moved)[layer]
        torch.testing.assert_close(heard.keys["slow"][layer], here + weight * (theirs - here))


def test_long_layers_are_compared_as_short_ones_are():
    """Piece by piece, in double precision: the cosines and the attention of layers that no piece holds."""
    rng = np.random.default_rng(0)
    rows = [rng.normal(size=2 * PIECE + 7).astype(np.float32) + 0.2 for _ in range(3)]
    members = {str(i): {"l": torch.tensor(row)} for i, row in enumerate(rows)}
    base = {"l": torch.zeros(2 * PIECE + 7)}
    exact = [row.astype(np.float64) for row in rows]
    cosines = Cosine().between([members["0"]["l"]], [m["l"] for m in members.values()], base["l"])[0]
    np.testing.assert_allclose(cosines.numpy(), [cos(exact[0], x) for x in exact], atol=1e-12)
    met, _ = Attention().meet("0", members, base)
    np.testing.assert_allclose(met["l"].numpy(), np.mean([layer_attn(x, exact) for x in exact], axis=0), atol=1e-6)


def test_a_buffer_of_all_children_is_waiting_for_all(tmp_path):
    """The limit, where all are equally fast and the root has nothing to train on."""
    waits = Real(tmp_path / "a", replace(WorldLM(key_layers=0.0).build(), server=ServerSgd()), data=False)
    buffered = Real(tmp_path / "b", replace(WorldLM(key_layers=0.0, buffer=2).build(), server=ServerSgd()), data=False)
    for _ in range(3):
        waits.round()
        buffered.round()
    np.testing.assert_allclose(waits.model("root").numpy(), buffered.model("root").numpy(), atol=1e-6)


vectors = st.lists(st.lists(st.floats(-3, 3, width=32), min_size=6, max_size=6), min_size=2, max_size=5)


@given(vectors)
def test_layer_attention_agrees_with_a_second_writing(rows):
    rows = [np.array(row) + np.arange(1, 7) * 1e-2 for row in rows]
    members = {str(i): {"l": torch.tensor(row, dtype=torch.float32)} for i, row in enumerate(rows)}
    base = {"l": torch.zeros(6)}
    if any(np.linalg.norm(row) < 1e-3 for row in rows):
        return
    exact = [m["l"].double().numpy() for m in members.values()]
    adopted, weights = Attention().adopt(members["0"], {n: m for n, m in members.items() if n != "0"}, base)
    np.testing.assert_allclose(adopted["l"].numpy(), layer_attn(exact[0], exact), atol=1e-6)
    assert sum(weights["l"].values()) == pytest.approx(1.0, abs=1e-9)
    met, _ = Attention().meet("0", members, base)
    np.testing.assert_allclose(met["l"].numpy(), np.mean([layer_attn(x, exact) for x in exact], axis=0), atol=1e-6)
    turned, _ = Attention().meet("0", dict(reversed(members.items())), base)
    np.testing.assert_allclose(met["l"].numpy(), turned["l"].numpy(), atol=1e-6)


def test_what_moved_is_compared_where_it_is_asked_for():
    base, one, other = torch.full((4,), 9.0), torch.tensor([1.0, 0, 0, 0]), torch.tensor([-1.0, 0, 0, 0])
    absolute = float(Cosine().between([base + one], [base + other], base))
    moved = float(Cosine(True).between([base + one], [base + other], base))
    assert absolute > 0.98
    assert moved == pytest.approx(-1.0)


def test_residuals_keep_away_from_their_senders_branch_if_asked():
    near, far = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    children = {"west": {"l": near}, "east": {"l": far}}
    residual, base = Residual("l", "west/fr", near), {"l": torch.zeros(2)}
    assert list(Attention().route([residual], children, base)) == ["west"]
    assert list(Attention(back=False).route([residual], children, base)) == ["east"]
    assert Attention(back=False).route([residual], {"west": {"l": near}}, base) == {}


def test_a_residual_for_a_layer_the_receiver_lacks_is_refused(tmp_path):
    real = Real(tmp_path)
    sent = pack([Residual("block.9", "east/c", torch.ones(5)), Residual("block.2", "east/d", torch.ones(5))])
    found, reason = unpack(sent, real.keys)
    assert [r.origin for r in found] == ["east/d"]
    assert "block.9" in reason
    assert "east/c" in reason
    reply = real.leaf("a", Fit(1, "west", tensors(START), sent))
    assert "block.9" in reply.refused["a"]
    assert list(reply.attention["down a"]["block.2"]) == ["a", "west", "east/d (residual 1)"]
    assert list(reply.attention["down a"]["block.1"]) == ["a", "west"]
    for wrong in (torch.ones(4), torch.full((5,), torch.nan)):
        assert unpack(pack([Residual("block.2", "c", wrong)]), real.keys)[0] == []


def test_a_nodes_backbone_is_its_parents(tmp_path):
    real = Real(tmp_path)
    request = Fit(1, "west", tensors(START + 1), nothing())
    loaded = agg_parent("a", real.method.tree, real.keys, {}, lambda: tensors(START), request, True)
    assert torch.equal(loaded.model.flat[BACKBONE], request.model.flat[BACKBONE])
    assert not torch.equal(loaded.model.flat[7:], request.model.flat[7:])


@pytest.mark.parametrize(
    ("blocks", "share", "expected"), [(12, 0.3, 4), (3, 0.3, 1), (2, 0.1, 1), (4, 1.0, 4), (4, 0.0, 0)]
)
def test_key_layers_are_the_last_blocks_and_never_fewer_than_one(blocks, share, expected):
    parts = {f"h.{i}": f"block.{i}" for i in range(blocks)} | {"wte": "embeddings"}
    found = last_blocks(parts, share)
    assert found == [f"block.{i}" for i in range(blocks - expected, blocks)]


def test_key_layers_that_do_not_exist_are_refused():
    with pytest.raises(ConfigError, match=r"block\.7.*block\.0 to block\.1"):
        last_blocks({"a": "block.0", "b": "block.1"}, ("block.7",))
