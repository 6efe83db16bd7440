"""A node's state on its disk: what is written is what safetensors reads, and what it was when it was handed over."""

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from hansa.client.state import StateFolder, write_vectors
from hansa.core.tensors import Layout, Tensors


@dataclass(frozen=True)
class Kept:
    values: Tensors


def tensors(*values: float) -> Tensors:
    return Tensors(Layout(("a",), ((len(values),),)), torch.tensor(values))


def test_a_file_is_read_as_one_of_the_library(tmp_path: Path) -> None:
    vectors = {"b/ä": torch.randn(7), "a": torch.randn(300), "none": torch.zeros(0)}
    write_vectors(tmp_path / "ours", vectors, {"states": '{"ä": 1}'})
    save_file(vectors, tmp_path / "library", {"states": '{"ä": 1}'})
    ours, library = load_file(tmp_path / "ours"), load_file(tmp_path / "library")
    assert ours.keys() == library.keys()
    assert all(ours[name].equal(library[name]) for name in vectors)
    with safe_open(tmp_path / "ours", "pt") as file:
        assert file.metadata() == {"states": '{"ä": 1}'}


def test_a_prepared_state_is_that_of_the_moment_even_if_its_memory_changes(tmp_path: Path) -> None:
    store, model, other = StateFolder(tmp_path), tensors(1.0, 2.0), tensors(5.0)
    write = store.prepare(1, {"x": Kept(model), "y": Kept(other)}, 0, [model.flat[:1]])
    unsafe = StateFolder(tmp_path / "unsafe").prepare(1, {"x": Kept(model)}, 0)
    assert not list(tmp_path.iterdir()), "nothing is written before the call"
    model.flat.zero_()
    write()
    unsafe()
    found = store.recall(2).get("x", Kept)
    assert found is not None
    assert found.values.flat.tolist() == [1.0, 2.0]
    changed = StateFolder(tmp_path / "unsafe").recall(2).get("x", Kept)
    assert changed is not None
    assert changed.values.flat.tolist() == [0.0, 0.0], "memory that is not named is not copied"
