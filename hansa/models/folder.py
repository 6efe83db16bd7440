"""Which files and settings the folder of a model may have that another party sent.

A model on a frozen base comes without the base (`hansa.models.base`). Everything is an allow-list. A file name is one
of those that transformers and tokenizers write. A key of ``config.json`` is one that the configuration class of its
``model_type`` declares, which leaves out every key that names code, a repository or a file (``auto_map``,
``attn_implementation``, ``quantization_config``, ``_name_or_path``). No value has the form of a path or an address. A
chat template is a program in a template language that no task of Hansa uses, so it is not sent.

`tidy` makes a folder of ours conform; `check` refuses a folder of another party that does not.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import fields
from pathlib import Path
from typing import Any

from hansa.core.errors import ConfigError, printable
from hansa.models.base import ADAPTER, BASE
from hansa.models.library import transformers
from hansa.models.weights import INDEX, SHARD, WEIGHTS, TensorInfo, read_header, shards

CONFIG, GENERATION, LABELS, WORDS = "config.json", "generation_config.json", "labels.json", "tokenizer_config.json"
SENTENCEPIECE = ("spiece.model", "sentencepiece.bpe.model", "tokenizer.model", "spm.model", "source.spm", "target.spm")
WORD_LISTS = ("vocab.json", "target_vocab.json", "added_tokens.json")  # JSON: token → number
WORD_TEXTS = ("vocab.txt", "merges.txt", "dict.txt", "bpe.codes")
TOKENIZER, SPECIAL_TOKENS = "tokenizer.json", "special_tokens_map.json"
FILES = frozenset(
    (
        CONFIG,
        GENERATION,
        LABELS,
        WORDS,
        WEIGHTS,
        INDEX,
        ADAPTER,
        BASE,
        TOKENIZER,
        SPECIAL_TOKENS,
        *SENTENCEPIECE,
        *WORD_LISTS,
        *WORD_TEXTS,
    )
)
GENERATION_KEYS = frozenset(
    (
        "_from_model_config",
        "bad_words_ids",
        "begin_suppress_tokens",
        "bos_token_id",
        "decoder_start_token_id",
        "do_sample",
        "early_stopping",
        "eos_token_id",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "length_penalty",
        "max_length",
        "max_new_tokens",
        "min_length",
        "num_beams",
        "no_repeat_ngram_size",
        "output_attentions",
        "output_hidden_states",
        "pad_token_id",
        "renormalize_logits",
        "repetition_penalty",
        "suppress_tokens",
        "temperature",
        "top_k",
        "top_p",
        "transformers_version",
        "use_cache",
    )
)
WORDS_KEYS = frozenset(
    (
        "add_bos_token",
        "add_eos_token",
        "add_prefix_space",
        "added_tokens_decoder",
        "additional_special_tokens",
        "backend",
        "clean_up_tokenization_spaces",
        "do_basic_tokenize",
        "do_lower_case",
        "errors",
        "extra_ids",
        "extra_special_tokens",
        "is_local",
        "keep_accents",
        "lang_codes",
        "legacy",
        "local_files_only",
        "max_length",
        "model_input_names",
        "model_max_length",
        "model_specific_special_tokens",
        "never_split",
        "num_mask_tokens",
        "offset",
        "pad_to_multiple_of",
        "pad_token_type_id",
        "padding_side",
        "remove_space",
        "separate_vocabs",
        "source_lang",
        "split_special_tokens",
        "src_lang",
        "stride",
        "strip_accents",
        "target_lang",
        "tgt_lang",
        "tokenize_chinese_chars",
        "tokenizer_class",
        "trim_offsets",
        "truncation_side",
        "truncation_strategy",
        "vocab_size",
    )
)
SPECIAL_KEYS = ("additional_special_tokens", "extra_special_tokens")
TOKEN_KEY = re.compile(r"[a-z]\w*_token", re.ASCII)
BACKENDS = ("tokenizers", "sentencepiece", "python")
DTYPES = ("float32", "float16", "bfloat16")
MAX_LAYERS = 512
MAX_POSITIONS = 1 << 20
MAX_NUMBER = 1 << 31
MAX_SETTINGS_BYTES = 4 << 20  # of a JSON file with settings
LONGEST_LABEL = 200  # characters of a label or a token
PLAIN = re.compile(r"[\w.+ -]{0,100}", re.ASCII)  # a value of a setting: no slash, no colon, no backslash


def is_allowed(name: str) -> bool:
    """Whether a file of this name may be part of a model that another party sent."""
    return name in FILES or SHARD.fullmatch(name) is not None


def tidy(folder: Path) -> None:
    """Remove from a folder of ours the files and the settings that `check` refuses."""
    for file in folder.iterdir():
        if not is_allowed(file.name):
            file.unlink()
    for name, known in ((CONFIG, _known_settings), (GENERATION, lambda _: GENERATION_KEYS), (WORDS, _known_words)):
        if (file := folder / name).is_file():
            given = json.loads(file.read_text(encoding="utf-8"))
            kept = {key: value for key, value in given.items() if key in known(given)}
            file.write_text(json.dumps(kept, indent=2, ensure_ascii=False), encoding="utf-8")


def check(files: Mapping[str, memoryview]) -> tuple[Any, dict[str, TensorInfo]]:
    """Return the configuration of a model that another party sent, and the tensors that its files list.

    Raises `ConfigError` in one sentence if a file, a setting or a value is not allowed. Nothing is built.
    """
    for name in files:
        if not is_allowed(name):
            raise ConfigError(f"it has a file named {printable(name, 100)!r}, which is not allowed")
    for needed in (CONFIG, LABELS):
        if needed not in files:
            raise ConfigError(f"it has no {needed}")
    labels = _json(files, LABELS, list)
    if not all(isinstance(label, str) and len(label) <= LONGEST_LABEL for label in labels):
        raise ConfigError(f"its {LABELS} is not a list of names")
    config = _check_settings(_json(files, CONFIG, dict))
    if GENERATION in files:
        _check_generation(_json(files, GENERATION, dict))
    if WORDS in files:
        _check_words(_json(files, WORDS, dict))
    if SPECIAL_TOKENS in files:  # transformers passes its keys to the tokenizer's class, file names included
        _check_special(_json(files, SPECIAL_TOKENS, dict))
    for name in (TOKENIZER, *WORD_LISTS):
        if name in files:
            _json(files, name, dict, most=len(files[name]))
    if BASE in files:
        return config, _check_adapter(files)
    tensors: dict[str, TensorInfo] = {}
    for shard in shards(files, lambda: _json(files, INDEX, dict)):
        found = read_header(files[shard], shard)
        if twice := tensors.keys() & found.keys():
            raise ConfigError(f"two of its files have a tensor {printable(min(twice), 100)!r}")
        tensors |= found
    return config, tensors


def _check_adapter(files: Mapping[str, memoryview]) -> dict[str, TensorInfo]:
    """The tensors of a start without its base; the receiver compares them with its own when it has built the model."""
    named = _json(files, BASE, dict)
    if set(named) != {"sha256"} or not re.fullmatch("[0-9a-f]{64}", str(named["sha256"])):
        raise ConfigError(f"its {BASE} is not the digest of a base")
    if ADAPTER not in files or any(name == WEIGHTS or SHARD.fullmatch(name) for name in files):
        raise ConfigError(f"it has a {BASE}, and must have {ADAPTER} and no other weights")
    return read_header(files[ADAPTER], ADAPTER)


def _json(files: Mapping[str, memoryview], name: str, kind: type, most: int = MAX_SETTINGS_BYTES) -> Any:
    """The content of a JSON file; a key that is given twice is refused, because readers differ in which one counts."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        """The key-value pairs of a JSON object as a dictionary; raises `ConfigError` if a key occurs twice."""
        if len(dict(pairs)) < len(pairs):
            raise ConfigError(f"its {name} has a key twice")
        return dict(pairs)

    if len(files[name]) > most:
        raise ConfigError(f"its {name} has {len(files[name])} bytes, and {most} are allowed")
    try:
        found = json.loads(bytes(files[name]).decode("utf-8"), object_pairs_hook=once)
    except (ValueError, RecursionError):
        raise ConfigError(f"its {name} is not JSON") from None
    if not isinstance(found, kind):
        raise ConfigError(f"its {name} is not a JSON {'object' if kind is dict else 'list'}")
    return found


# ── config.json ───────────────────────────────────────────────────────────────────────────────────────────────────


def _known_settings(given: Mapping[str, Any]) -> frozenset[str]:
    """The keys that the configuration class of a ``model_type`` declares; empty if transformers has no such class."""
    kind = given.get("model_type")
    mapping = transformers().CONFIG_MAPPING
    if not isinstance(kind, str) or kind not in mapping.keys():  # noqa: SIM118 (it is not a dict)
        return frozenset()
    cls = mapping[kind]
    declared = {field.name for field in fields(cls)} | cls().to_dict().keys() | set(cls.attribute_map)
    return frozenset(key for key in declared if not key.startswith("_")) | {"model_type"}


def _check_settings(given: dict[str, Any]) -> Any:
    """The configuration that a ``config.json`` describes; raises `ConfigError`."""
    known = _known_settings(given)
    if not known:
        raise ConfigError(f"its {CONFIG} has a model_type that transformers does not have")
    cls = transformers().CONFIG_MAPPING[given["model_type"]]
    if cls.sub_configs:
        raise ConfigError(f"its {CONFIG} describes a model made of several models, which is not supported")
    _refuse_unknown(CONFIG, given, known)
    for key, value in given.items():
        label = key in ("id2label", "label2id")
        _check_value(CONFIG, key, value, _is_name if label else _is_plain)
        if isinstance(value, int) and not isinstance(value, bool):
            most = MAX_LAYERS if "layer" in key else MAX_POSITIONS if "position" in key else MAX_NUMBER
            if not -MAX_NUMBER <= value <= most:
                raise ConfigError(f"its {CONFIG} has {key} = {value}, and at most {most} is allowed")
    if given.get("dtype") not in (None, *DTYPES):
        raise ConfigError(f"its {CONFIG} has a dtype other than {', '.join(DTYPES)}")
    try:
        config = cls.from_dict(given)
    except Exception as error:  # the classes of transformers validate in many ways
        raise ConfigError(f"its {CONFIG} cannot be read by transformers ({type(error).__name__})") from None
    return config


# ── the tokenizer ─────────────────────────────────────────────────────────────────────────────────────────────────


def _known_words(given: Iterable[str]) -> frozenset[str]:
    return WORDS_KEYS | {key for key in given if TOKEN_KEY.fullmatch(key)}


def _check_special(given: dict[str, Any]) -> None:
    _refuse_unknown(SPECIAL_TOKENS, given, {*SPECIAL_KEYS, *filter(TOKEN_KEY.fullmatch, given)})
    for key, value in given.items():
        _check_value(SPECIAL_TOKENS, key, value, _is_name)


def _check_words(given: dict[str, Any]) -> None:
    _refuse_unknown(WORDS, given, _known_words(given))
    if given.get("backend", BACKENDS[0]) not in BACKENDS:
        raise ConfigError(f"its {WORDS} names a backend other than {', '.join(BACKENDS)}")
    name = given.get("tokenizer_class")
    if name is not None:
        library = transformers()
        cls = getattr(library, name, None) if isinstance(name, str) and name.isidentifier() else None
        if not (isinstance(cls, type) and issubclass(cls, library.PreTrainedTokenizerBase)):
            raise ConfigError(f"its {WORDS} names a tokenizer_class that transformers does not have")
    for key, value in given.items():
        _check_value(WORDS, key, value, _is_name)  # tokens have any form, such as </s>


# ── generation_config.json ────────────────────────────────────────────────────────────────────────────────────────


def _check_generation(given: dict[str, Any]) -> None:
    _refuse_unknown(GENERATION, given, GENERATION_KEYS)
    for key, value in given.items():
        _check_value(GENERATION, key, value, _is_plain)


def _refuse_unknown(name: str, given: Iterable[str], known: AbstractSet[str]) -> None:
    for key in given:
        if key not in known:
            raise ConfigError(f"its {name} has a setting {printable(key, 60)!r}, which is not allowed")


def _check_value(name: str, key: str, value: Any, good: Callable[[str], bool], depth: int = 0) -> None:
    """Raise `ConfigError` unless a value is made of numbers, switches and texts that are ``good``."""
    inside: Iterable[Any] = ()
    if isinstance(value, dict):
        inside = [*value.keys(), *value.values()]
    elif isinstance(value, list):
        inside = value
    elif isinstance(value, str) and not good(value):
        raise ConfigError(f"its {name} has a value of {printable(key, 60)!r} that is not a plain word or number")
    if depth > 4:
        raise ConfigError(f"its {name} has a value of {printable(key, 60)!r} that is nested too deeply")
    for one in inside:
        _check_value(name, key, one, good, depth + 1)


def _is_plain(text: str) -> bool:
    return PLAIN.fullmatch(text) is not None and ".." not in text


def _is_name(text: str) -> bool:
    return len(text) <= LONGEST_LABEL
