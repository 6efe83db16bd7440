"""Build a model from a Hugging Face folder or hub id, or from a preset with random weights."""

import json
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any

import torch

from hansa.core.device import CPU
from hansa.core.errors import ConfigError
from hansa.core.seeds import torch_seeded
from hansa.models.grow import add_layers
from hansa.models.library import transformers
from hansa.models.settings import Model
from hansa.models.tokenizer import byte_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

# While transformers builds a model, it patches torch functions for all threads; the seed is the process's, too.
ONE_AT_A_TIME = RLock()

SIZES = {"mini": (2, 64, 2), "tiny": (2, 128, 2), "small": (4, 256, 4), "base": (12, 768, 12)}  # layers, width, heads
NEW = "_hansa_new_tensors"  # attribute of a base: the tensors that its files lack
LACKED = "_hansa_lacked"  # attribute of any model from a folder or hub: the same
ATTENTION = ("eager", "sdpa")  # implementations that are part of transformers and torch
AUTO = {
    "AutoModelForMaskedLM": "encoder",
    "AutoModelForSequenceClassification": "encoder",
    "AutoModelForTokenClassification": "encoder",
    "AutoModelForCausalLM": "decoder",
    "AutoModelForSeq2SeqLM": "encoder-decoder",
}


def preset(
    size: str,
    auto: str,
    tokenizer: "PreTrainedTokenizerBase",
    max_length: int,
    dropout: float = 0.0,
    labels: tuple[str, ...] = (),
) -> "PreTrainedModel":
    """A BERT, Llama or Marian model in one of four sizes, with random weights.

    ``auto`` (a transformers class) determines the architecture.
    """
    layers, width, heads = SIZES[size]
    family = AUTO[auto]
    vocabulary = -(-len(tokenizer) // 8) * 8  # matrix products are faster with a multiple of eight
    special: dict[str, Any] = {
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }
    config: Any
    if family == "encoder":
        config = transformers().BertConfig(
            vocab_size=vocabulary,
            hidden_size=width,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=4 * width,
            max_position_embeddings=max_length + 2,
            hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
            type_vocab_size=2,
            **special,
        )
    elif family == "decoder":
        config = transformers().LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=width,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=8 * width // 3,
            max_position_embeddings=max(max_length, 64),
            attention_dropout=dropout,
            tie_word_embeddings=True,
            **special,
        )
    else:
        config = transformers().MarianConfig(
            vocab_size=vocabulary,
            d_model=width,
            encoder_layers=layers,
            decoder_layers=layers,
            encoder_attention_heads=heads,
            decoder_attention_heads=heads,
            encoder_ffn_dim=4 * width,
            decoder_ffn_dim=4 * width,
            max_position_embeddings=max_length + 2,
            dropout=dropout,
            attention_dropout=dropout,
            scale_embedding=True,
            decoder_start_token_id=tokenizer.bos_token_id,
            forced_eos_token_id=None,
            **special,
        )
    return from_config(config, auto, labels)


def from_config(config: Any, auto: str, labels: tuple[str, ...] = ()) -> "PreTrainedModel":
    """A model with random weights from a transformers configuration."""
    _name_labels(config, labels)
    with ONE_AT_A_TIME:
        return _fixed_tables(getattr(transformers(), auto).from_config(config, trust_remote_code=False))


def _fixed_tables(model: "PreTrainedModel") -> "PreTrainedModel":
    """Freeze sinusoidal position tables.

    They are constants, but transformers makes them trainable when it loads a model; every update would contain them.
    """
    for module in model.modules():
        if "Sinusoidal" in type(module).__name__:
            module.requires_grad_(False)
    return model


def _name_labels(config: Any, labels: tuple[str, ...]) -> None:
    if labels:
        config.id2label = dict(enumerate(labels))
        config.label2id = {label: i for i, label in enumerate(labels)}


def initial(
    settings: Model,
    auto: str,
    tokenizer: "PreTrainedTokenizerBase",
    max_length: int,
    labels: tuple[str, ...],
    seed: int,
) -> "PreTrainedModel":
    """The model that training starts from. Random weights depend on the seed only."""
    if settings.keeps_base:
        model = base(settings, auto, labels, seed)
        _check_sizes(model, settings, tokenizer, max_length)
        return model
    with ONE_AT_A_TIME, torch_seeded(seed, "initial weights"):
        if settings.preset is not None:
            model = preset(settings.preset, auto, tokenizer, max_length, settings.dropout, labels)
        else:
            model = load(str(settings.path), auto, labels, settings.fresh, settings.revision, settings.gguf)
            _check_sizes(model, settings, tokenizer, max_length)
        return add_layers(model, settings.added) if settings.added else model


def _check_sizes(model: Any, settings: Model, tokenizer: "PreTrainedTokenizerBase", max_length: int) -> None:
    rows = model.get_input_embeddings().weight.shape[0]
    if len(tokenizer) > rows:
        raise ConfigError(
            f"the tokenizer has {len(tokenizer)} tokens, but the embedding table of {settings.path} has {rows}: "
            "use the model's own tokenizer (leave 'tokenizer' out)"
        )
    positions = getattr(model.config, "max_position_embeddings", None)
    if positions is not None and max_length > positions:
        raise ConfigError(
            f"data.max_length is {max_length}, but {settings.path} has {positions} positions: lower data.max_length"
        )


def _refuse_kernels(config: Any, path: str) -> None:
    """Raise `ConfigError` if a configuration names an implementation of attention that may come from a hub."""
    named = getattr(config, "_attn_implementation", None)
    if named not in (None, *ATTENTION):
        raise ConfigError(
            f"model.path: the config.json of {path} names the attention implementation {str(named)!r}, which may be "
            f"code from a hub; allowed are {' and '.join(ATTENTION)}: remove the setting"
        )


def load(
    path: str,
    auto: str,
    labels: tuple[str, ...] = (),
    fresh: bool = False,
    revision: str | None = None,
    gguf: str | None = None,
) -> "PreTrainedModel":
    """A model from a folder or hub id in float32; with ``fresh``, its architecture with random weights.

    Raises `ConfigError` if it cannot be loaded as ``auto``.
    """
    return _loaded(path, auto, labels, revision, gguf, None if fresh else {"dtype": torch.float32})[0]


def base(
    settings: Model, auto: str, labels: tuple[str, ...], seed: int, device: torch.device = CPU
) -> "PreTrainedModel":
    """The frozen base of ``settings`` in its own dtype, or quantised; tensors that it lacks depend on the seed only.

    Raises `ConfigError` if it cannot be loaded as ``auto``, or if this machine cannot quantise it.
    """
    how: dict[str, Any] = {"dtype": getattr(torch, settings.dtype) if settings.dtype else "auto"}
    if settings.gguf is not None and settings.dtype is None:
        how["dtype"] = torch.float32  # the dtype of a GGUF file is a quantised one
    if settings.quantize is not None:
        how |= {"quantization_config": _quantization(settings.quantize), "device_map": {"": str(device)}}
    with torch_seeded(seed, "initial weights"):
        model, missing = _loaded(str(settings.path), auto, labels, settings.revision, settings.gguf, how)
    for module in model.modules():
        # bitsandbytes packs 4-bit weights for the CPU at the first evaluation, and cannot train with them afterwards.
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False
    setattr(model, NEW, missing)
    return model


def outline(
    settings: Model,
    auto: str,
    labels: tuple[str, ...],
    max_length: int,
    tokenizer: "PreTrainedTokenizerBase | None" = None,
) -> "PreTrainedModel":
    """The model of ``settings`` without values, on the device ``meta``; raises `ConfigError` as `initial` does.

    ``tokenizer``: the run's; without it, a preset has the vocabulary of bytes, and sizes are not compared.
    """
    if settings.preset is not None:
        with torch.device("meta"):
            return preset(settings.preset, auto, tokenizer or byte_tokenizer(), max_length, labels=labels)
    path, at = str(settings.path), (settings.revision, settings.gguf)
    if not settings.fresh and not settings.added and settings.gguf is None:
        model, missing = _loaded(path, auto, labels, *at, {"dtype": "auto", "device_map": "meta"})
        if settings.keeps_base:
            setattr(model, NEW, missing)
        if tokenizer is not None:
            _check_sizes(model, settings, tokenizer, max_length)
        return model
    with torch.device("meta"):
        model = _loaded(path, auto, labels, *at, None)[0]
        if settings.added:
            model = add_layers(model, settings.added)
    if tokenizer is not None:
        _check_sizes(model, settings, tokenizer, max_length)
    if settings.keeps_base:  # a GGUF file has a causal model, with its head
        inside = {id(parameter) for parameter in model.base_model.parameters()}
        head = (name for name, parameter in model.named_parameters() if id(parameter) not in inside)
        setattr(model, NEW, frozenset() if AUTO[auto] == "decoder" else frozenset(head))
    return model


def new_tensors(model: Any) -> frozenset[str] | None:
    """The tensors of a base that its files lack, such as those of a new head; None if the model is no such base."""
    found: frozenset[str] | None = getattr(model, NEW, None)
    return found


def lacked_tensors(model: Any) -> frozenset[str]:
    """The tensors of a model from a folder or hub that its files lack, and that have random values."""
    found: frozenset[str] = getattr(model, LACKED, frozenset())
    return found


def own_order(settings: Model, labels: tuple[str, ...]) -> tuple[str, ...]:
    """The classes in the order of a pre-trained head that has the same ones; else as they are."""
    own = head_labels(settings)
    return own if len(own) == len(labels) and set(own) == set(labels) else labels


def head_labels(settings: Model) -> tuple[str, ...]:
    """The classes that the head of a pre-trained model in a folder was trained for; empty if it names none."""
    file = Path(str(settings.path)) / "config.json"
    if settings.path is None or settings.fresh or not file.is_file():
        return ()
    named = json.loads(file.read_text(encoding="utf-8")).get("id2label") or {}
    names = tuple(str(named[key]) for key in sorted(named, key=int))
    return () if names == tuple(f"LABEL_{i}" for i in range(len(names))) else names


def _quantization(bits: str) -> Any:
    """The settings of bitsandbytes; raises `ConfigError` if this machine does not have it."""
    try:
        import bitsandbytes
    except (ImportError, OSError, RuntimeError):
        raise ConfigError(
            f"model.quantize is '{bits}', which needs bitsandbytes, and this machine does not have it: pip install "
            "'hansa[quantize]' where the platform is supported, or leave model.quantize out"
        ) from None
    del bitsandbytes
    library = transformers()
    if bits == "8bit":
        return library.BitsAndBytesConfig(load_in_8bit=True)
    return library.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")


def _loaded(
    path: str,
    auto: str,
    labels: tuple[str, ...],
    revision: str | None,
    gguf: str | None,
    how: dict[str, Any] | None,
) -> tuple["PreTrainedModel", frozenset[str]]:
    """A model and the tensors that its files lack; ``how``: None builds it with random weights."""
    local = Path(path).is_dir()
    origin: dict[str, Any] = {"trust_remote_code": False, "local_files_only": local, "revision": revision or "main"}
    if gguf is not None:
        origin["gguf_file"] = gguf
    try:
        config = transformers().AutoConfig.from_pretrained(path, **origin)
        _refuse_kernels(config, path)
        _name_labels(config, labels)
        if how is None:
            return from_config(config, auto), frozenset()
        safe = True if local and any(Path(path).glob("*.safetensors")) else None
        with ONE_AT_A_TIME:
            loaded, info = getattr(transformers(), auto).from_pretrained(
                path,
                config=config,
                use_safetensors=safe,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
                **how,
                **origin,
            )
    except (OSError, ValueError, ImportError, RuntimeError) as error:
        first = str(error).strip().splitlines()[0]
        raise ConfigError(f"model.path: {path} cannot be loaded as {auto}: {first}") from None
    model: PreTrainedModel = loaded
    other = _other_sizes(model, info["mismatched_keys"], path, auto)
    missing = frozenset(info["missing_keys"]) | other
    setattr(model, LACKED, missing)
    if gguf is not None:  # its values are plain numbers now, and the marks of a quantised model would prevent saving
        model.hf_quantizer = None
        model.is_quantized = False
        if hasattr(model.config, "quantization_config"):
            del model.config.quantization_config
    return _fixed_tables(model), missing


def _other_sizes(model: Any, mismatched: Any, path: str, auto: str) -> frozenset[str]:
    """The tensors of a head for other classes, which was built anew; raises `ConfigError` for any other tensor."""
    inside = {name for name, p in model.named_parameters() if any(p is q for q in model.base_model.parameters())}
    found = {str(entry[0]) if isinstance(entry, tuple) else str(entry): entry for entry in mismatched}
    for name, entry in found.items():
        if name in inside or model.base_model is model:
            raise ConfigError(
                f"model.path: {path} cannot be loaded as {auto}: {name} has another shape than config.json says "
                f"({', '.join(str(tuple(shape)) for shape in entry[1:]) if isinstance(entry, tuple) else 'see there'})"
            )
    return frozenset(found)
