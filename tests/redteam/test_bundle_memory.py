"""The initial model: memory that is predicted before anything is built, and headers of safetensors files."""

import json
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from hansa.core.errors import ConfigError
from hansa.deploy import quota
from hansa.deploy.bundle import unpack
from hansa.models import folder, weights
from hansa.models.tokenizer import byte_tokenizer
from hansa.models.tokenizer import load as load_tokenizer
from tests.redteam.bundles import bundle_of, change, refused, write_model
from tests.tasks.test_tasks import DECODERS

# ── memory ────────────────────────────────────────────────────────────────────────────────────────────────────────


def seconds(action: Callable[[], Any]) -> float:
    began = perf_counter()
    action()
    return perf_counter() - began


def test_three_thousand_layers_are_refused_before_any_is_built(start: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control lays out a tenth of the layers on the device `meta`, as a check without bounds would do."""
    change(start, "config.json", num_hidden_layers=3000)
    config = transformers.AutoConfig.from_pretrained(start)
    config.num_hidden_layers = 300

    def control() -> None:
        with torch.device("meta"):
            made = transformers.AutoModelForMaskedLM.from_config(config)
        assert len(list(made.parameters())) > 4000

    unbounded = seconds(control)
    assert seconds(lambda: refused(start, "num_hidden_layers = 3000, and at most 512")) < unbounded
    monkeypatch.setattr(folder, "MAX_LAYERS", 1 << 20)  # the second bound: the tensors that the files have
    assert seconds(lambda: refused(start, "implies more tensors than its files have")) < unbounded


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"num_hidden_layers": 1}, "have a tensor 'bert.encoder.layer.1"),
        ({"num_hidden_layers": 3}, "lack a tensor 'bert.encoder.layer.2"),
        ({"hidden_size": 128}, "has the shape"),
        ({"vocab_size": 2_000_000_000}, "has the shape"),
        ({"max_position_embeddings": 1 << 22}, "max_position_embeddings = 4194304, and at most"),
    ],
)
def test_files_that_do_not_match_their_configuration_are_refused(start: Path, settings: Any, reason: str) -> None:
    change(start, "config.json", **settings)
    refused(start, reason)


def test_a_tensor_that_the_configuration_does_not_imply_is_refused(start: Path) -> None:
    values = load_file(start / "model.safetensors")
    save_file(values | {"hidden": torch.zeros(5)}, start / "model.safetensors", {"format": "pt"})
    refused(start, "have a tensor 'hidden'")


def test_a_model_that_does_not_fit_into_the_memory_is_refused(start: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = (start / "model.safetensors").stat().st_size
    monkeypatch.setattr(quota, "free_memory", lambda: 100 * size)
    unpack(bundle_of(start), start.parent / "good")
    monkeypatch.setattr(quota, "free_memory", lambda: 2 * size)
    refused(start, r"the initial model needs about \d+ bytes of memory for training")


def test_tables_that_no_file_holds_count_as_memory(tmp_path: Path) -> None:
    """Models compute tables that are no parameters, such as the frequencies of a rotary embedding."""
    model = transformers.AutoModelForCausalLM.from_config(DECODERS["llama"](264))
    start = write_model(tmp_path / "start", model)
    config, tensors = folder.check({file.name: memoryview(file.read_bytes()) for file in start.iterdir()})
    footprint = weights.check_tensors(config, tensors)
    assert footprint.parameters == 4 * sum(p.numel() for p in model.parameters())
    assert footprint.buffers == sum(b.numel() * b.element_size() for b in model.buffers())
    assert footprint.buffers > 0


# ── headers of safetensors files ──────────────────────────────────────────────────────────────────────────────────


def header(listed: Any, body: int, size: int | None = None) -> memoryview:
    text = json.dumps(listed).encode()
    return memoryview((len(text) if size is None else size).to_bytes(8, "little") + text + bytes(body))


F32 = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    "data",
    [
        memoryview(b""),
        memoryview(b"\xff" * 8),
        header({"a": F32}, 8, size=1 << 40),
        header({"a": F32}, 9),
        header({"a": F32}, 7),
        header({"a": F32, "b": F32}, 8),
        header({"a": F32 | {"shape": [-2]}}, 8),
        header({"a": F32 | {"shape": [2.0]}}, 8),
        header({"a": F32 | {"shape": [1 << 62]}}, 8),
        header({"a": F32 | {"dtype": "F99"}}, 8),
        header({"a": F32 | {"data_offsets": [8, 16]}}, 16),
        header({"a": F32 | {"data_offsets": "ab"}}, 8),
        header({"a": 1}, 8),
        header([F32], 8),
    ],
)
def test_malformed_headers_are_refused(data: memoryview) -> None:
    assert weights.read_header(header({"a": F32}, 8), "x") == {"a": weights.TensorInfo((2,), 8)}
    with pytest.raises(ConfigError, match="not a safetensors file"):
        weights.read_header(data, "x")


@given(
    shapes=st.dictionaries(st.text("abc.", min_size=1, max_size=6), st.lists(st.integers(0, 4), max_size=3), max_size=5)
)
def test_headers_agree_with_the_library(tmp_path_factory: pytest.TempPathFactory, shapes: dict[str, list[int]]) -> None:
    file = tmp_path_factory.mktemp("headers") / "model.safetensors"
    save_file({name: torch.zeros(shape) for name, shape in shapes.items()}, file)
    found = weights.read_header(memoryview(file.read_bytes()), file.name)
    assert {name: info.shape for name, info in found.items()} == {n: tuple(s) for n, s in shapes.items()}


@given(data=st.binary(max_size=300))
def test_any_bytes_are_refused_in_a_sentence(data: bytes) -> None:
    with pytest.raises(ConfigError):
        folder.check({"config.json": memoryview(data), "labels.json": memoryview(b"[]")})


def test_tokenizers_of_a_bundle_are_the_same(honest: Path, tmp_path: Path) -> None:
    unpack(bundle_of(honest), tmp_path / "there")
    text = "Fièvre, 39 °C"
    assert load_tokenizer(str(tmp_path / "there"))(text) == byte_tokenizer()(text)
