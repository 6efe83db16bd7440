"""The initial model of a coordinator that lies: files, settings and tensors that reach beyond the model.

Each attack has a control: transformers itself, given the same folder, does what the attacker wants (it reads a file of
the silo, asks a hub for code, builds thousands of layers). With the checks of `unpack`, the bundle is refused, and
nothing is written.
"""

import inspect
import json
import os
import pickle
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from hansa.core.errors import ConfigError
from hansa.deploy.bundle import pack, unpack
from hansa.deploy.network.blob_protocol import InvalidRequest
from hansa.models import build, folder, library, weights
from hansa.models.tokenizer import byte_tokenizer
from tests.redteam.bundles import CAUSAL, LABELS, MASKED, TRANSLATE, bundle_of, change, refused, write_model
from tests.tasks.test_tasks import DECODERS, ENCODERS

# ── what is accepted ──────────────────────────────────────────────────────────────────────────────────────────────


def architectures() -> dict[str, tuple[str, Any]]:
    found: dict[str, tuple[str, Any]] = {}
    for family, auto in ((ENCODERS, MASKED), (DECODERS, CAUSAL)):
        found |= {name: (auto, cast(Any, make)(264)) for name, make in family.items()}
    found["tags"] = ("AutoModelForTokenClassification", ENCODERS["bert"](264))
    found["classes"] = ("AutoModelForSequenceClassification", ENCODERS["deberta"](264))
    sizes = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "max_position_embeddings": 40}
    found["bart"] = (TRANSLATE, transformers.BartConfig(vocab_size=264, **sizes, **heads))
    found["t5"] = (TRANSLATE, transformers.T5Config(vocab_size=264, d_model=32, d_kv=16, d_ff=48, num_layers=1))
    return found


@pytest.mark.parametrize("name", sorted(architectures()))
def test_models_of_many_families_are_accepted_and_unpacked_as_they_were_packed(name: str, tmp_path: Path) -> None:
    auto, config = architectures()[name]
    start = write_model(tmp_path / "start", getattr(transformers, auto).from_config(config))
    unpack(pack(start, tmp_path / "bundle"), tmp_path / "there")
    there = {file.name: file.read_bytes() for file in (tmp_path / "there").iterdir()}
    assert there == {file.name: file.read_bytes() for file in start.iterdir()}
    assert {"config.json", "labels.json", "model.safetensors", "tokenizer.json"} <= there.keys()
    loaded = build.load(str(tmp_path / "there"), auto).state_dict()
    original = build.load(str(start), auto).state_dict()
    assert all(torch.equal(loaded[key], original[key]) for key in original)


@pytest.mark.parametrize("auto", sorted(build.AUTO))
def test_presets_are_accepted(auto: str, tmp_path: Path) -> None:
    assert auto in weights.HEADS
    labels = LABELS if "Classification" in auto else ()
    start = write_model(tmp_path / "start", build.preset("mini", auto, byte_tokenizer(), 32, labels=labels))
    unpack(bundle_of(start), tmp_path / "there")


def test_weights_in_several_files_are_accepted(honest: Path, tmp_path: Path) -> None:
    model = transformers.AutoModelForMaskedLM.from_pretrained(honest)
    start = write_model(tmp_path / "start", model)
    (start / "model.safetensors").unlink()
    model.save_pretrained(start, max_shard_size="100KB")
    folder.tidy(start)
    assert (start / "model.safetensors.index.json").exists()
    unpack(bundle_of(start), tmp_path / "there")
    there = build.load(str(tmp_path / "there"), MASKED).state_dict()
    assert all(torch.equal(value, there[key]) for key, value in model.state_dict().items())


def test_what_is_refused_is_not_sent(start: Path, tmp_path: Path) -> None:
    """A coordinator's own folder may come from a hub, with code and notes beside the weights."""
    for name in ("modeling.py", "pytorch_model.bin", "README.md", "chat_template.jinja"):
        (start / name).write_text("{}")
    change(start, "config.json", auto_map={"AutoModel": "modeling.Model"}, _name_or_path="/home/somebody/model")
    folder.tidy(start)
    unpack(pack(start, tmp_path / "bundle"), tmp_path / "there")
    assert not {"modeling.py", "pytorch_model.bin"} & {file.name for file in (tmp_path / "there").iterdir()}


# ── files ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_index_that_names_a_file_outside_of_the_folder_is_refused(start: Path, tmp_path: Path) -> None:
    """The silo's disk has a model of its own, `private`; the index makes transformers load it."""
    private = tmp_path / "private.safetensors"
    values = load_file(start / "model.safetensors")
    save_file({name: torch.full_like(value, 7.0) for name, value in values.items()}, private, {"format": "pt"})
    (start / "model.safetensors").unlink()
    index = {"metadata": {"total_size": 1}, "weight_map": dict.fromkeys(values, "../private.safetensors")}
    (start / "model.safetensors.index.json").write_text(json.dumps(index))

    stolen = transformers.AutoModelForMaskedLM.from_pretrained(start)  # the control
    assert float(stolen.get_input_embeddings().weight.detach().min()) == 7.0
    refused(start, "neither model.safetensors nor weights in several files")
    save_file(values, start / "model-00001-of-00001.safetensors", {"format": "pt"})
    refused(start, "does not name exactly the files with weights beside it")


def test_a_tokenizer_with_a_path_to_a_file_of_the_silo_is_refused(start: Path, tmp_path: Path) -> None:
    """`special_tokens_map.json` is merged into the arguments of the tokenizer's class, `vocab_file` included."""
    private = tmp_path / "patients.txt"
    private.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nborkelmund\n")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (start / name).unlink()
    (start / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nfever\n")
    (start / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    unpack(bundle_of(start), tmp_path / "good")
    (start / "special_tokens_map.json").write_text(json.dumps({"vocab_file": str(private)}))

    stolen = transformers.AutoTokenizer.from_pretrained(start)  # the control
    assert "borkelmund" in stolen.get_vocab()
    refused(start, "special_tokens_map.json has a setting 'vocab_file'")
    (start / "special_tokens_map.json").unlink()
    change(start, "tokenizer_config.json", vocab_file=str(private))
    refused(start, "tokenizer_config.json has a setting 'vocab_file'")


def test_a_pickle_is_refused_under_any_name(start: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return (print, ("executed",))

    data = pickle.dumps(Evil())
    original = (start / "config.json").read_bytes()
    (start / "config.json").write_bytes(data)
    refused(start, "config.json is not JSON")
    (start / "config.json").write_bytes(original)
    for name in ("pytorch_model.bin", "model.pkl", "training_args.bin", "optimizer.model", "x.json", "x.safetensors"):
        (start / name).write_bytes(data)
        refused(start, f"a file named '{name}'")
        (start / name).unlink()
    (start / "model.safetensors").write_bytes(data)
    refused(start, "model.safetensors is not a safetensors file")


def test_a_file_that_is_listed_twice_is_refused(start: Path, tmp_path: Path) -> None:
    text = (start / "config.json").read_bytes()
    listed = json.dumps([["config.json", len(text)]] * 2).encode() + b"\n"
    with pytest.raises(InvalidRequest, match="two files of one name"):
        unpack(memoryview(listed + text + text), tmp_path / "there")


# ── settings ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_attention_implementation_from_a_hub_is_refused(start: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def asking(name: str, *_: Any, **__: Any) -> None:
        asked.append(name)
        raise ValueError("no network in tests")

    change(start, "config.json", attn_implementation="kernels-community/evil")
    monkeypatch.setattr("transformers.modeling_utils.lazy_import_flash_attention", asking)
    with pytest.raises(ValueError, match="no network in tests"):  # the control: transformers asks for the kernel
        transformers.AutoModelForMaskedLM.from_pretrained(start)
    assert asked == ["kernels-community/evil"]
    refused(start, "config.json has a setting 'attn_implementation'")
    with pytest.raises(ConfigError, match="names the attention implementation 'kernels-community/evil'"):
        build.load(str(start), MASKED)  # nor does a model folder of one's own load it
    assert len(asked) == 1


def test_model_types_do_not_load_kernels_from_a_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mamba and others ask a hub for compiled code when they are built, unless this variable says no."""
    from transformers.integrations import hub_kernels

    assert 'os.environ.get("USE_HUB_KERNELS", "YES")' in inspect.getsource(hub_kernels), "the control: on by default"
    monkeypatch.delenv("USE_HUB_KERNELS", raising=False)
    library._imported.cache_clear()
    library.transformers()
    assert os.environ["USE_HUB_KERNELS"] == "NO"


def test_code_beside_a_model_is_refused_and_not_executed(start: Path, tmp_path: Path) -> None:
    proof = tmp_path / "executed"
    (start / "evil.py").write_text(
        f"from pathlib import Path\nPath({str(proof)!r}).write_text('x')\n"
        "from transformers import BertForMaskedLM, BertConfig\nclass Evil(BertForMaskedLM): pass\n"
        "class EvilConfig(BertConfig): model_type = 'evil'\n"
    )
    change(start, "config.json", model_type="evil", auto_map={"AutoConfig": "evil.EvilConfig"})
    transformers.AutoConfig.from_pretrained(start, trust_remote_code=True)  # the control: this is what it would do
    assert proof.exists()
    proof.unlink()
    refused(start, "a file named 'evil.py'")
    (start / "evil.py").unlink()
    refused(start, "a model_type that transformers does not have")
    change(start, "config.json", model_type="bert")
    refused(start, "config.json has a setting 'auto_map'")
    assert not proof.exists()


ODD_SETTINGS: list[tuple[str, dict[str, Any], str]] = [
    ("config.json", {"quantization_config": {"quant_method": "bitsandbytes"}}, "'quantization_config'"),
    ("config.json", {"_name_or_path": "/etc"}, "'_name_or_path'"),
    ("config.json", {"_attn_implementation": "flash"}, "'_attn_implementation'"),
    ("config.json", {"_attn_implementation_internal": "flash"}, "'_attn_implementation_internal'"),
    ("config.json", {"experts_implementation": "x/y"}, "'experts_implementation'"),
    ("config.json", {"trust_remote_code": True}, "'trust_remote_code'"),
    ("config.json", {"custom_pipelines": {}}, "'custom_pipelines'"),
    ("config.json", {"per_layer_config": {}}, "'per_layer_config'"),
    ("config.json", {"anything": 1}, "'anything'"),
    ("config.json", {"hidden_act": "../../x"}, "'hidden_act' that is not a plain word"),
    ("config.json", {"hidden_act": "https://example.org/x"}, "'hidden_act' that is not a plain word"),
    ("config.json", {"hidden_act": {"a": [["/x"]]}}, "'hidden_act' that is not a plain word"),
    ("config.json", {"hidden_act": "no such function"}, "no model can be built|cannot be read by transformers"),
    ("config.json", {"model_type": "../evil"}, "a model_type that transformers does not have"),
    ("config.json", {"model_type": ["bert"]}, "a model_type that transformers does not have"),
    ("config.json", {"architectures": ["Evil"]}, "names an architecture"),
    ("config.json", {"architectures": ["BertForMaskedLM", "BertModel"]}, "names an architecture"),
    ("config.json", {"architectures": None}, "names an architecture"),
    ("config.json", {"dtype": "complex64"}, "a dtype other than"),
    ("config.json", {"hidden_size": "many"}, "no model can be built|cannot be read by transformers"),
    ("tokenizer_config.json", {"tokenizer_class": "evil.Tokenizer"}, "names a tokenizer_class"),
    ("tokenizer_config.json", {"tokenizer_class": "pipeline"}, "names a tokenizer_class"),
    ("tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["x.T", None]}}, "'auto_map'"),
    ("tokenizer_config.json", {"backend": "mistral"}, "names a backend"),
    ("tokenizer_config.json", {"name_or_path": "evil/hub"}, "'name_or_path'"),
    ("tokenizer_config.json", {"sp_model_kwargs": {"model_file": "/etc/passwd"}}, "'sp_model_kwargs'"),
    ("generation_config.json", {"cache_implementation": "x"}, "'cache_implementation'"),
    ("generation_config.json", {"assistant_model": "evil/hub"}, "'assistant_model'"),
    ("generation_config.json", {"early_stopping": "/x"}, "not a plain word"),
    ("labels.json", {}, "labels.json is not a JSON list"),
]


@pytest.mark.parametrize(("name", "settings", "reason"), ODD_SETTINGS)
def test_settings_beyond_those_of_the_model_are_refused(start: Path, name: str, settings: Any, reason: str) -> None:
    if name == "labels.json":
        (start / name).write_text("{}")
    else:
        change(start, name, **settings)
    refused(start, reason)


def test_a_key_that_is_given_twice_is_refused(start: Path) -> None:
    text = (start / "config.json").read_text().rstrip().removesuffix("}")
    (start / "config.json").write_text(text + ', "hidden_size": 64, "hidden_size": 64}')
    refused(start, "config.json has a key twice")


def test_a_model_made_of_several_models_is_refused(start: Path) -> None:
    parts = transformers.EncoderDecoderConfig(
        encoder=transformers.BertConfig().to_dict(), decoder=transformers.BertConfig().to_dict()
    )
    (start / "config.json").write_text(json.dumps(parts.to_dict()))
    refused(start, "a model made of several models")
