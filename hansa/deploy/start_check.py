"""Verification of the starting model that a coordinator sends, before a silo works on it.

The approved settings determine the start: random weights follow from the seed and the sizes, a pre-trained model from
its folder, of which the silo has its own copy (`hansa approve --model`). The silo builds the start again from its own
files and compares configuration, weights and tokenizer. What it cannot build, because it has no copy of the model, it
accepts only if an administrator approved exactly these files (`hansa approve --pending`).

A frozen base does not travel: the start has what the silo's copy lacks, and `hansa.models.base` compares the digests.

A vocabulary that was built from counts of all silos cannot be built again by one of them. The silo checks that it has
the form of such a vocabulary (the rules by which text is cut, the size); its entries are the coordinator's choice.
"""

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import load_file

from hansa.config.federation import Federation
from hansa.config.nodes import walk
from hansa.config.tree import federated_vocabulary
from hansa.core.errors import HansaError
from hansa.deploy.approval import Approval, NotApproved
from hansa.models import build, tokenizer
from hansa.models.adapt import adapt
from hansa.models.base import ADAPTER, BASE, own_tensors
from hansa.models.library import transformers
from hansa.tasks.base import TASKS, ExtraTokensTask

TOLERANCE = 1e-5  # of a weight: other versions of torch round differently
FREE_KEYS = ("transformers_version", "_name_or_path", "torch_dtype", "dtype", "architectures")  # of config.json


def start_files(folder: Path) -> dict[str, str]:
    """File name → SHA-256 of the files of a start."""
    files = sorted(file for file in folder.iterdir() if file.is_file())
    return {file.name: sha256(file.read_bytes()).hexdigest() for file in files}


def _with(present: bool) -> str:
    return "with" if present else "without"


def verify_start(folder: Path, federation: Federation, approval: Approval) -> str:
    """How the start in ``folder`` was verified, in words; raises `NotApproved` if it was not."""
    if (folder / BASE).is_file() != federation.model.keeps_base:
        raise NotApproved(
            f"by the settings the initial model must come {_with(not federation.model.keeps_base)} the base's weights, "
            f"and the coordinator sent it {_with(federation.model.keeps_base)} them"
        )
    if approval.start:
        if start_files(folder) == approval.start:
            return "the files of the start are those that were approved"
        raise NotApproved("the files of the starting model are not those that were approved")
    if federation.model.preset is None and not approval.model:
        raise NotApproved(
            f"the starting model cannot be verified, because the silo has no copy of '{federation.model.path}': give "
            "its folder with 'hansa approve FED.yaml --model FOLDER', or approve the received files with --accept-start"
        )
    _check_tokenizer(folder, federation, approval)
    expected = _rebuilt(folder, federation, approval)
    _check_config(folder, expected)
    if federation.model.keeps_base:
        own = {name: t.detach() for name, t in own_tensors(adapt(expected, federation.model, federation.seed)).items()}
        _compare(load_file(folder / ADAPTER), own)
    else:
        received = build.load(str(folder), TASKS.build(federation.task).auto).state_dict()
        _compare(received, expected.state_dict())
    return "the start was built again from the approved settings and is the same"


def _rebuilt(folder: Path, federation: Federation, approval: Approval) -> Any:
    """The start, built by the silo itself."""
    task = TASKS.build(federation.task)
    settings = federation.model
    if approval.model:
        settings = settings.model_copy(update={"path": approval.model, "revision": None})
    words = tokenizer.load(str(folder))
    labels = tuple(json.loads((folder / "labels.json").read_text(encoding="utf-8")))
    try:
        return build.initial(settings, task.auto, words, federation.data.max_length, labels, federation.seed)
    except HansaError as error:
        raise NotApproved(f"the starting model cannot be built from the approved settings ({error})") from None


def _check_config(folder: Path, expected: Any) -> None:
    """Compare what a model is built from: a setting that was left out has its default, which need not be the own."""
    loaded = transformers().AutoConfig.from_pretrained(str(folder), local_files_only=True)
    sent = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    sent = json.loads(loaded.to_json_string(use_diff=False)) | sent
    own = json.loads(expected.config.to_json_string(use_diff=False))
    own |= json.loads(expected.config.to_json_string())
    for key, value in sent.items():
        if key not in FREE_KEYS and own.get(key) != value:
            raise NotApproved(f"the configuration of the starting model has another '{key[:40]}' than the approved one")


def _compare(received: Mapping[str, torch.Tensor], own: Mapping[str, torch.Tensor]) -> None:
    """Raise `NotApproved` if tensors are missing or more, or a value is another one."""
    if {name: tuple(t.shape) for name, t in received.items()} != {name: tuple(t.shape) for name, t in own.items()}:
        raise NotApproved("the starting model has other tensors than the approved one")
    for name, values in own.items():
        if not values.is_floating_point():
            continue
        sent, values = received[name].float(), values.float()
        if not torch.allclose(sent, values, rtol=0.0, atol=TOLERANCE):
            raise NotApproved(
                f"the weights of the starting model are not the approved ones: '{name}' differs by up to "
                f"{float((sent - values).abs().max()):.3g}"
            )


def _check_tokenizer(folder: Path, federation: Federation, approval: Approval) -> None:
    file, counted = folder / "tokenizer.json", federated_vocabulary(federation)
    if not file.is_file() or (federation.tokenizer.path is not None and not counted):
        raise NotApproved(
            "the tokenizer of the starting model cannot be built again by the silo: look at the received files, and "
            "approve them with 'hansa approve --pending --accept-start'"
        )
    sent = tokenizer.load(str(folder))
    if not counted:
        if _described(sent) != _described(_own_tokenizer(federation, approval)):
            raise NotApproved("the tokenizer of the starting model is not the approved one")
        return
    entries, limit = len(_backend(sent)["model"]["vocab"]), federation.tokenizer.size
    if _form(sent) != _form(_own_tokenizer(federation, approval)) or entries > limit:
        raise NotApproved(
            f"the vocabulary ({entries} entries) is not one that counts of words give; the settings allow "
            f"{limit} entries, and no tokens beside them but those of the task"
        )


def _own_tokenizer(federation: Federation, approval: Approval) -> Any:
    """The tokenizer that the settings imply, saved and loaded as the received one was; entries from counts are few."""
    if not federated_vocabulary(federation) and federation.tokenizer.kind != "bytes":
        return tokenizer.load(approval.model, gguf=federation.model.gguf)
    counted = federated_vocabulary(federation)
    words = tokenizer.train_vocabulary({"a": 1}, 300) if counted else tokenizer.byte_tokenizer()
    task = TASKS.build(federation.task)
    if isinstance(task, ExtraTokensTask):
        sources = (source for _, node in walk(federation.silos) for source in node.sources)
        words.add_tokens(task.extra_tokens(sources), special_tokens=True)
    with TemporaryDirectory() as draft:
        words.save_pretrained(draft)
        return tokenizer.load(draft)


def _backend(words: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(words.backend_tokenizer.to_str())
    return found


def _described(words: Any) -> dict[str, Any]:
    """Everything that decides how a tokenizer cuts text, as it is after loading.

    Tokens that are added beside the vocabulary count: each has an embedding of its own, whose update would tell whether
    the silo has that text. So do the roles of tokens (padding, mask).
    """
    backend = {key: value for key, value in _backend(words).items() if key not in ("truncation", "padding")}
    roles = {role: str(token) for role, token in words.special_tokens_map.items()}
    sides = words.padding_side, words.truncation_side, bool(words.split_special_tokens)
    return {"backend": backend, "roles": roles, "sides": sides}


def _form(words: Any) -> dict[str, Any]:
    """A tokenizer without the entries that counts of words gave it."""
    found = _described(words)
    found["backend"]["model"] = {k: v for k, v in found["backend"]["model"].items() if k not in ("vocab", "merges")}
    added = found["backend"]["added_tokens"]
    found["backend"]["added_tokens"] = [{k: v for k, v in token.items() if k != "id"} for token in added]
    return found
