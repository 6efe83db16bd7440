"""A frozen base: it keeps its dtype, stays out of the start, and what travels and is exported is the adapter."""

import json
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file
from tokenizers.pre_tokenizers import ByteLevel

from hansa.core.errors import ConfigError
from hansa.models import build
from hansa.models.adapt import adapt
from hansa.models.base import ADAPTER, BASE, digest
from hansa.models.settings import Lora, Model
from hansa.models.tokenizer import byte_tokenizer
from hansa.preview.preview import preview
from hansa.runs.inference import load, write_model
from hansa.runs.ledger import Ledger
from hansa.runs.run import run
from tests.conftest import Build

TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
TRAIN = {"lr": 0.5, "batch": 8, "samples": {"floor": 16}}
IDS = torch.arange(5, 17).view(2, 6)


def decoder(folder: Path, dtype: torch.dtype = torch.float32, vocabulary: int = 264, **settings: Any) -> Path:
    """A causal model whose head is a table of its own, as larger models have it."""
    config = transformers.LlamaConfig(vocab_size=vocabulary, tie_word_embeddings=False, **(TINY | settings))
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(config).to(dtype).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def encoder(folder: Path, dtype: torch.dtype = torch.float32) -> Path:
    torch.manual_seed(0)
    config = transformers.BertConfig(vocab_size=264, **TINY)
    transformers.BertForMaskedLM(config).to(dtype).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def adapted(path: Path, **lora: Any) -> dict[str, Any]:
    return {"path": str(path), "adapt": "lora", "lora": {"rank": 2} | lora}


def logits(model: Any) -> torch.Tensor:
    with torch.inference_mode():
        found: torch.Tensor = model.eval()(input_ids=IDS).logits.float()
    return found


def traffic(folder: Path) -> tuple[int, int]:
    """Bytes of the largest update, and of the largest request."""
    ledger = Ledger(folder)
    try:
        [[up, down]] = ledger.select("select max(received), max(sent) from traffic")
        return int(up), int(down)
    finally:
        ledger.close()


def test_only_the_adapter_is_sent_and_the_head_of_an_untied_model_is_not(federation: Build, tmp_path: Path) -> None:
    base = decoder(tmp_path / "base", vocabulary=2048)
    settings = federation(task="causal-lm", rounds=2, model=adapted(base), tokenizer={}, train=TRAIN)
    outcome = run(settings, tmp_path / "run", workers=0)
    layers = 2 * (4 * (32 + 32) + 3 * (32 + 48))  # of q, k, v, o and gate, up, down: inputs and outputs
    adapter = 4 * 2 * layers
    up, down = traffic(outcome.folder)
    headers = 8192
    assert adapter <= up <= adapter + headers
    assert adapter <= down <= adapter + headers
    assert 2 * (adapter + headers) < 4 * 2048 * 32, "the control: the head alone would be larger"
    forecast = preview(settings)
    assert forecast.traffic is not None
    assert forecast.traffic.updates == 3 * adapter, "hansa check predicts the same"


def test_the_start_has_no_byte_of_the_base(federation: Build, tmp_path: Path) -> None:
    base = decoder(tmp_path / "base")
    settings = federation(task="causal-lm", rounds=1, model=adapted(base), tokenizer={}, train=TRAIN)
    start = run(settings, tmp_path / "run", workers=0).folder / "start"
    held = load_file(base / "model.safetensors").values()
    sent = b"".join(file.read_bytes() for file in start.iterdir())
    assert not any(tensor.numpy().tobytes() in sent for tensor in held if tensor.numel() > 64 and tensor.std() > 0)
    assert {*start.glob("*.safetensors")} == {start / ADAPTER}
    assert all("lora_" in name for name in load_file(start / ADAPTER))
    assert json.loads((start / BASE).read_text()) == {"sha256": digest(settings.model)}


@pytest.mark.parametrize("extra", [{}, {"rslora": True}, {"dora": True}, {"targets": ["q_proj", "v_proj"]}])
def test_the_export_is_a_folder_that_plain_peft_loads(federation: Build, tmp_path: Path, extra: Any) -> None:
    base = decoder(tmp_path / "base")
    settings = federation(task="causal-lm", rounds=1, model=adapted(base, **extra), tokenizer={}, train=TRAIN)
    folder = run(settings, tmp_path / "run", workers=0).folder
    assert not (folder / "model" / "model.safetensors").exists()
    plain = transformers.AutoModelForCausalLM.from_pretrained(base)
    before = logits(plain)
    theirs = peft.PeftModel.from_pretrained(plain, str(folder / "model"))
    _, ours = load(folder)
    _, checkpoint = load(folder, checkpoint=1)
    write_model(folder, None, tmp_path / "merged", merged=True)
    write_model(folder, None, tmp_path / "copy", merged=False)
    assert (tmp_path / "copy" / "adapter_config.json").is_file()
    whole = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    for other in (ours, checkpoint, whole):
        torch.testing.assert_close(logits(theirs), logits(other), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(before, logits(theirs), atol=1e-4), "the control: the adapter has an effect"
    if "targets" in extra:
        names = load_file(folder / "model" / "adapter_model.safetensors")
        assert {name.split(".")[-3] for name in names} == {"q_proj", "v_proj"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["lora", "frozen"])
def test_a_new_head_is_trained_and_a_base_keeps_its_dtype(
    federation: Build, tmp_path: Path, dtype: torch.dtype, kind: Any
) -> None:
    base = encoder(tmp_path / "base", dtype)
    model = adapted(base) if kind == "lora" else {"path": str(base), "adapt": kind}
    settings = federation(task="classify", rounds=2, model=model, tokenizer={}, train=TRAIN)
    folder = run(settings, tmp_path / "run", workers=0).folder
    runtime, resident = load(folder, checkpoint=2)
    frozen = {p.dtype for p in resident.parameters() if not p.requires_grad}
    assert dtype in frozen
    assert {p.dtype for p in resident.parameters() if p.requires_grad} == {torch.float32}
    names = set(runtime.fresh().layout.names)
    assert {"classifier.weight", "classifier.bias"} <= names
    assert ("bert.pooler.dense.weight" in names) == (kind == "lora"), "it is new as well"
    assert not any("embeddings" in name or "cls." in name for name in names)
    _, final = load(folder)
    torch.testing.assert_close(logits(final), logits(resident), rtol=1e-2, atol=1e-2)


def test_a_named_dtype_and_quantisation(federation: Build, tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    base = decoder(tmp_path / "base", hidden_size=64, intermediate_size=128)  # multiples of its block size
    losses = {}
    for name, how in {"plain": {}, "bfloat16": {"dtype": "bfloat16"}, "4bit": {"quantize": "4bit"}}.items():
        model = adapted(base) | how
        settings = federation(task="causal-lm", rounds=1, model=model, tokenizer={}, train=TRAIN)
        outcome = run(settings, tmp_path / name, workers=0)
        losses[name] = outcome.metrics["north"]["loss"]
        runtime, _ = load(outcome.folder)
        kinds = {p.dtype for p in runtime.learner.model.parameters() if not p.requires_grad}
        assert kinds == {"plain": {torch.float32}, "bfloat16": {torch.bfloat16}}.get(name, {torch.uint8, torch.float32})
        write_model(outcome.folder, None, tmp_path / f"{name}-merged", merged=True)
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path / f"{name}-merged")
    assert max(losses.values()) - min(losses.values()) < 0.05
    assert len(set(losses.values())) == 3, "the control: they are different models"


def test_a_resumed_run_needs_the_same_base(federation: Build, tmp_path: Path) -> None:
    base = decoder(tmp_path / "base")
    settings = federation(task="causal-lm", rounds=1, model=adapted(base), tokenizer={}, train=TRAIN)
    run(settings, tmp_path / "run", workers=0)
    weights = base / "model.safetensors"
    changed = bytearray(weights.read_bytes())
    changed[-1] ^= 1
    weights.write_bytes(changed)
    with pytest.raises(ConfigError, match=r"has the digest .* began with a base of the digest"):
        run(settings, tmp_path / "run", resume=True, workers=0)


def test_two_workers_give_the_same_adapter(federation: Build, tmp_path: Path) -> None:
    base = decoder(tmp_path / "base", torch.bfloat16)
    settings = federation(task="causal-lm", rounds=2, model=adapted(base, dropout=0.1), tokenizer={}, train=TRAIN)
    files = [
        run(settings, tmp_path / str(workers), workers=workers).folder / "model/adapter_model.safetensors"
        for workers in (0, 2)
    ]
    assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model": {"lora": {"rank": 33}}}, r"model\.lora\.rank is 33, and layer .* 32 × 32"),
        ({"model": {"lora": {"targets": ["q_prj"]}}}, "did you mean 'q_proj'"),
        ({"tokenizer": {"kind": "federated", "size": 300}}, "does not belong to the pre-trained model"),
        ({"tokenizer": {"path": "words"}}, "does not belong to the pre-trained model"),
    ],
)
def test_wrong_settings_are_refused_by_check_and_run(
    federation: Build, tmp_path: Path, change: Any, reason: str
) -> None:
    base = decoder(tmp_path / "base")
    other = byte_tokenizer()
    other.add_tokens(["fever"])
    words = Path(change.get("tokenizer", {}).get("path", "words")).name
    other.save_pretrained(tmp_path / words)
    given: dict[str, Any] = {"model": adapted(base) | change.get("model", {}), "tokenizer": change.get("tokenizer", {})}
    if "path" in given["tokenizer"]:
        given["tokenizer"] = {"path": str(tmp_path / words)}
    settings = federation(task="causal-lm", rounds=1, train=TRAIN, **given)
    for command in (preview, lambda one: run(one, tmp_path / "run", workers=0)):
        with pytest.raises(ConfigError, match=reason):
            command(settings)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ({"preset": "tiny", "dtype": "bfloat16"}, "dtype is for a frozen base"),
        ({"path": "m", "quantize": "4bit"}, "quantize is for a frozen base"),
        ({"preset": "tiny", "gguf": "m.gguf"}, "give its 'path'"),
        ({"preset": "tiny", "lora": {"rank": 2}}, "adapt is 'full'"),
        ({"path": "m", "adapt": "lora", "gguf": "m.gguf", "quantize": "8bit"}, "quantised already"),
        ({"path": "m", "adapt": "lora", "rank": 2}, "is now called 'lora.rank'"),
        ({"path": "m", "adapt": "lora", "lora": {"dora": True, "aggregate": "exact"}}, "the adapter is not a product"),
    ],
)
def test_contradictions_in_the_settings(federation: Build, model: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        federation(model=model, tokenizer={})


def test_a_rank_above_the_width_of_a_layer_is_refused(tmp_path: Path) -> None:
    settings = Model(path=str(decoder(tmp_path / "base")), adapt="lora", lora=Lora(rank=33))
    model = build.base(settings, "AutoModelForCausalLM", (), 0)
    with pytest.raises(ConfigError, match=r"model.lora.rank is 33, and layer '.*' is \d+ × \d+: a rank above 32"):
        adapt(model, settings, 0)


def test_a_machine_without_quantisation_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import sys

    base = decoder(tmp_path / "base")
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    settings = Model(path=str(base), adapt="lora", lora=Lora(rank=2), quantize="8bit")
    with pytest.raises(ConfigError, match=r"pip install 'hansa\[quantize\]'"):
        build.base(settings, "AutoModelForCausalLM", (), 0)


def write_gguf(folder: Path) -> str:
    """A small causal model as a GGUF file, with a tokenizer of bytes in it; returns the file's name."""
    gguf = pytest.importorskip("gguf")
    width, layers, heads, inner = 32, 2, 2, 64
    values = torch.Generator().manual_seed(0)
    folder.mkdir()
    writer = gguf.GGUFWriter(str(folder / "small.gguf"), "llama")
    writer.add_block_count(layers)
    writer.add_context_length(64)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    alphabet = sorted(ByteLevel.alphabet())
    tokens = ["<|endoftext|>", *alphabet, "th"]
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3] + [1] * (len(tokens) - 1))
    writer.add_token_merges(["t h"])
    for role in (writer.add_bos_token_id, writer.add_eos_token_id, writer.add_unk_token_id, writer.add_pad_token_id):
        role(0)
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (len(tokens), width), "output_norm.weight": (width,)}
    for block in range(layers):
        inside: dict[str, tuple[int, ...]] = {
            "attn_q": (width, width),
            "attn_k": (width, width),
            "attn_v": (width, width),
        }
        inside |= {"attn_output": (width, width), "ffn_gate": (inner, width), "ffn_up": (inner, width)}
        inside |= {"ffn_down": (width, inner), "attn_norm": (width,), "ffn_norm": (width,)}
        shapes |= {f"blk.{block}.{name}.weight": shape for name, shape in inside.items()}
    for name, shape in shapes.items():
        tensor = torch.ones(shape) if len(shape) == 1 else 0.05 * torch.randn(shape, generator=values)
        writer.add_tensor(name, tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return "small.gguf"


def test_a_gguf_file_is_a_base_with_its_own_tokenizer(federation: Build, tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "base")
    model = adapted(tmp_path / "base") | {"gguf": file}
    settings = federation(task="causal-lm", rounds=1, model=model, tokenizer={}, train=TRAIN)
    assert preview(settings).traffic is not None
    folder = run(settings, tmp_path / "run", workers=0).folder
    (runtime, ours), (_, checkpoint) = load(folder), load(folder, checkpoint=1)
    assert len(runtime.vocabulary.tokenizer) == 258
    torch.testing.assert_close(logits(ours), logits(checkpoint), rtol=1e-4, atol=1e-5)
    assert not (folder / "start" / "model.safetensors").exists()
    write_model(folder, None, tmp_path / "merged", merged=True)
    whole = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    torch.testing.assert_close(logits(ours), logits(whole), rtol=1e-4, atol=1e-5)
    with pytest.raises(ConfigError, match=r"no other\.gguf there"):
        preview(federation(task="causal-lm", model=model | {"gguf": "other.gguf"}, tokenizer={}))
