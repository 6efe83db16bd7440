"""Trees in a federation file: what a file may say, and what is refused."""

from pathlib import Path
from typing import Any

import pytest

from hansa.config.checks import check
from hansa.config.file import parse, read
from hansa.config.nodes import repeats
from hansa.config.tree import holders
from hansa.core.errors import ConfigError, UserError
from hansa.core.settings import Named
from hansa.models.settings import Model
from hansa.runs.run import run
from tests.conftest import Build


def test_what_nodes_hold(tree: Build) -> None:
    settings = tree()
    held = holders(settings)
    assert [len(held[name].sources) for name in ("root", "west", "north")] == [4, 2, 1]
    assert {s.group("west") for s in held["west"].sources} == {"north", "north-2"}
    silos = settings.silos | {"west": settings.silos["west"].model_copy(update={"rounds": 3})}
    assert repeats(silos) == {"west": 3, "north": 3, "north-2": 3, "east": 1, "south": 1, "south-2": 1}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("silos:\n  west: &w\n    silos: {east: *w}\n", "a node that stands below itself"),
        ("silos:\n  west: {silos: {}}\n", "needs data of its own"),
        ("silos:\n  fr: {mixture: true}\n", "needs data of its own"),
        ("silos:\n  west: {mixture: true, train: a, silos: {fr: b}}\n", "not both"),
        ("silos: {west: {participation: {count: 3}, silos: {fr: b}}}\n", "this node has 1 silos"),
        ("root: mixture\nsilos: {root: a.jsonl}\n", "'root' is used twice"),
    ],
)
def test_mistakes_in_trees_are_answered_in_one_sentence(tmp_path: Path, text: Any, expected: Any) -> None:
    (tmp_path / "f.yaml").write_text(text)
    with pytest.raises(ConfigError, match=expected):
        read(tmp_path / "f.yaml")


def test_a_cycle_built_in_python_is_refused() -> None:
    node: dict[str, Any] = {}
    node["silos"] = {"east": node}
    with pytest.raises(ConfigError, match="a node that stands below itself"):
        parse({"silos": {"west": node}})


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"method": "fedavg"}, "'root' has silos below it and data of its own"),
        ({"personal": {}}, "leave 'personal' out"),
        ({"method": {"name": "worldlm", "buffer": 3}}, "the root has 2 children: set method.buffer to at most 2"),
        ({"upload": ["calm"]}, "compares whole layers"),
        ({"method": {"name": "worldlm", "key_layers": ["block.7"]}}, "block.7"),
        ({"method": {"name": "hierfavg", "filter": {"by": "keys"}}}, "no key layers are sent"),
        ({"method": {"name": "worldlm", "key_layers": 0.0, "filter": {"by": "keys"}}}, "no key layers are sent"),
    ],
)
def test_what_does_not_fit_a_tree_is_refused_before_anything_is_written(
    tree: Build, tmp_path: Path, settings: Any, expected: Any
) -> None:
    with pytest.raises(UserError, match=expected):
        run(tree(**settings), tmp_path / "run", workers=0)
    assert not (tmp_path / "run" / "start").exists()


def test_a_child_of_another_architecture_is_refused(tree: Build, tmp_path: Path) -> None:
    other = run(tree(rounds=0, data={"max_length": 16, "valid": 0.0, "test": 0.2}), tmp_path / "a", workers=0)
    from transformers import LlamaConfig, LlamaForCausalLM

    wide = LlamaConfig(vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)
    LlamaForCausalLM(wide).save_pretrained(tmp_path / "wide")
    settings = tree()
    for path, fits in ((other.folder / "model", True), (tmp_path / "wide", False)):
        west = settings.silos["west"].model_copy(update={"model": Model(path=str(path))})
        changed = settings.model_copy(update={"silos": settings.silos | {"west": west}, "rounds": 1})
        if fits:
            run(changed, tmp_path / "fits", workers=0)
        else:
            with pytest.raises(ConfigError, match=r"silos\.west\.model is of another architecture"):
                run(changed, tmp_path / "refused", workers=0)


@pytest.mark.parametrize("method", ["hierfavg", {"name": "worldlm", "key_layers": 0.5}])
def test_a_node_has_no_tree_of_its_own(tree: Build, tmp_path: Path, method: Any) -> None:
    settings = tree()
    for own, fits in ((method, False), ("worldlm", True), ({"name": "fedprox", "mu": 0.1}, True)):
        east = settings.silos["east"].model_copy(update={"method": Named.model_validate(_named(own))})
        changed = settings.model_copy(update={"silos": settings.silos | {"east": east}})
        if fits:
            check(changed)
        else:
            with pytest.raises(ConfigError, match=r"silos\.east\.method is .* must combine models in the same way"):
                check(changed)


def _named(method: Any) -> Any:
    return {"name": method} if isinstance(method, str) else method
