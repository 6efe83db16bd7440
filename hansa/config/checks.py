"""What is refused before anything is loaded or written. It needs no model, so that a mistake is answered at once."""

from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast

from hansa.config.asynchrony import region_rule
from hansa.config.compatibility import refuse_node
from hansa.config.federation import Federation
from hansa.config.method import build_method
from hansa.config.nodes import ROOT, Node, repeats, walk
from hansa.config.plugins import find_plugin, load_entry_points, load_plugins
from hansa.config.sections import Training
from hansa.config.tree import holders, protected
from hansa.core.compression import COMPRESSORS
from hansa.core.errors import ConfigError, DataError
from hansa.core.method import AGGREGATORS, METHODS, Method
from hansa.core.registry import Registry
from hansa.core.settings import Named
from hansa.data.deidentification.kinds import built_in
from hansa.methods.fedavg import fedavg
from hansa.models import tokenizer
from hansa.tasks.base import TASKS, LabelledTask, MultiTextTask, Task, discovery_of

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.txt", "vocab.json", "spiece.model", "source.spm")
STEP_SETTINGS = ("packing", "precision", "gradient_checkpointing", "compile", "processes", "shard")
CLASSIFIER = "AutoModelForSequenceClassification"


def check(federation: Federation) -> None:
    """Refuse unknown methods and tasks, combinations that make no sense, and data that is not there."""
    check_settings(federation)
    check_data_files(federation)


def check_data_files(federation: Federation) -> None:
    """Raise `DataError` if a file or folder with data is not there."""
    for name, node in holders(federation).items():
        for source in node.sources:
            beside = source.aligned.files().values() if source.aligned is not None else ()
            for file in (*source.files().values(), *beside):
                if not Path(file).exists():
                    raise DataError(
                        f"silos.{name}: {file} does not exist; give the path of a file or folder with its data"
                    )
                if Path(file).is_file() and not Path(file).stat().st_size:
                    raise DataError(f"silos.{name}: {file} is empty; give a file with data, or leave the silo out")


def named_code(federation: Federation) -> tuple[str, ...]:
    """What a federation file names to be executed: plug-in files, and a finder of personal details."""
    finder = federation.data.deidentify
    return (*federation.plugins, *([finder] if finder is not None and not built_in(finder) else []))


def check_without_code(federation: Federation) -> None:
    """What can be checked without executing what the file names: that the named files are there."""
    for file in federation.plugins:
        find_plugin(file)
    check_data_files(federation)


def refuse_unknown_names(federation: Federation, remedy: str) -> None:
    """Raise `ConfigError` if the task, the method or another part is registered by a plug-in that was not executed.

    ``remedy``: how to have plug-ins executed.
    """
    load_entry_points()
    aggregation = federation.aggregate
    named: list[tuple[Registry[Any], Named | None]] = [
        (TASKS, federation.task),
        *((METHODS, method) for method in (federation.method, *(n.method for _, n in walk(federation.silos)))),
        *((COMPRESSORS, step) for step in federation.upload.steps),
        (AGGREGATORS, aggregation.named if aggregation is not None else None),
    ]
    for registry, one in named:
        if one is not None and federation.plugins and one.name not in registry.entries:
            raise ConfigError(
                f"{registry.what} '{one.name}' is not part of Hansa, and the plug-ins that the file names were not "
                f"executed: {remedy}, if you trust them"
            )


def check_settings(federation: Federation) -> None:
    """What can be checked without the data, which may lie in other organisations. Executes the file's plug-ins."""
    load_plugins(federation.plugins)
    task = TASKS.build(federation.task)
    if federation.kind == "survey":
        raise ConfigError("kind is 'survey', and a survey trains nothing: leave 'kind' out, and run 'hansa survey'")
    method = build_method(federation)
    _check_texts(federation, method, task)
    _check_tree(federation, method)
    _check_steps(federation, method, task)
    for name, node in walk(federation.silos):
        _check_node(federation, name, node, method, task)
    guarded = next((name for name, node in walk(federation.silos) if node.policy is not None), None)
    if federation.kind in ("central", "dominant") and guarded is not None:
        raise ConfigError(
            f"a central run pools the silos' data, and no policy can allow that: leave out silos.{guarded}.policy"
        )
    if federation.data.deidentify is not None:
        if isinstance(task, MultiTextTask) and not getattr(task, "texts_deidentified", False):
            raise ConfigError(
                f"data.deidentify looks at one field, but a sample of task '{federation.task.name}' has two: "
                "de-identify both before the run ('hansa data deidentify', with the same key)"
            )
        from hansa.data.deidentification.finders import load

        load(federation.data.deidentify, federation.data.keep_details)
    _check_best(federation, method)
    _check_model(federation)


def _check_best(federation: Federation, method: Method) -> None:
    """Refuse to keep the best model where the last round's state belongs to the last model."""
    if not federation.evaluate.keep_best:
        return
    guarded = next((name for name, node in walk(federation.silos) if node.policy is not None), None)
    if guarded is not None:
        raise ConfigError(
            f"evaluate.keep_best scores an earlier model after the last round, and the policy of silos.{guarded} "
            "allows one model per round: leave one of them out"
        )
    kept = method.hierarchy is not None or method.upload.keeps_local or method.upload.both_ways
    if kept or method.scope != fedavg().scope:
        raise ConfigError(
            f"evaluate.keep_best: with method '{method.name}' and this 'upload', silos keep values of their own that "
            "belong to the last round: leave it out"
        )


def _check_model(federation: Federation) -> None:
    """Refuse a folder without a model, and a tokenizer that is not the one of a pre-trained model."""
    model, words = federation.model, federation.tokenizer
    path, needed = model.path, model.gguf or "config.json"
    if path is not None and path.startswith((".", "/", "~")) and not (Path(path) / needed).is_file():
        raise ConfigError(
            f"model: {path} is not a Hugging Face model folder (no {needed} there); give such a folder, a hub id, "
            "or a preset: mini, tiny, small, base"
        )
    if path is not None and (meant := _similar_folder(path)) is not None:
        raise ConfigError(f"model: {path} is not a folder; did you mean {meant}?")
    if path is None or model.fresh or (words.kind in (None, "model") and words.path is None):
        return
    named = f"tokenizer.kind '{words.kind}'" if words.path is None else f"the tokenizer of {words.path}"
    if words.kind == "federated" or (Path(path).is_dir() and not same_tokens(federation)):
        raise ConfigError(
            f"{named} does not belong to the pre-trained model {path}, whose embeddings are of its own tokens: use the "
            "model's own tokenizer (leave 'tokenizer' out), or start from random weights (model.fresh: true)"
        )


def _similar_folder(path: str) -> str | None:
    """A model folder with a name like that of ``path``, which is not there; None if none is, or if it is a hub id."""
    here = Path(path)
    if here.exists() or not here.parent.is_dir():
        return None
    folders = [file.parent.name for file in here.parent.glob("*/config.json")]
    close = get_close_matches(here.name, folders, n=1, cutoff=0.75)
    return str(here.parent / close[0]) if close else None


def same_tokens(federation: Federation) -> bool:
    """Whether the named tokenizer has the tokens of the model folder's own; true if the folder has no tokenizer."""
    model, words = federation.model, federation.tokenizer
    if not any(
        (Path(str(model.path)) / file).is_file() for file in (model.gguf or TOKENIZER_FILES[0], *TOKENIZER_FILES)
    ):
        return True
    given = tokenizer.load(words.path) if words.path is not None else tokenizer.byte_tokenizer()
    own = tokenizer.load(str(model.path), model.revision, model.gguf).get_vocab()
    return all(own.get(token) == number for token, number in given.get_vocab().items())


def _check_steps(federation: Federation, method: Method, task: Task) -> None:
    """Refuse settings of how steps are computed that do not go with the task, or with privacy of single patients."""
    if federation.train.packing and not getattr(task, "packs", False):
        raise ConfigError(
            f"train.packing puts several texts into one row, which task '{federation.task.name}' cannot keep apart: "
            "leave it out, or use causal-lm or instruct"
        )
    if federation.train.processes > 1 and not getattr(method.objective, "task_loss_only", False):
        raise ConfigError(
            f"train.processes: the objective of method '{method.name}' looks at more than the task's loss, which "
            "several processes cannot share: leave it out, or use fedavg, fedprox or diloco"
        )
    if federation.train.shard:
        _check_shards(federation, method)
    plain = Training()
    changed = [n for n in STEP_SETTINGS if getattr(federation.train, n) != getattr(plain, n)]
    inside = [name for name, privacy in sorted(protected(federation).items()) if privacy.unit != "silo"]
    if changed and inside:
        raise ConfigError(
            f"silos.{inside[0]}.privacy: the gradient of each {protected(federation)[inside[0]].unit} is computed by "
            f"itself, without train.{changed[0]}: leave it out, or use 'unit: silo'"
        )


def _check_shards(federation: Federation, method: Method) -> None:
    """Refuse what would run a model in parts in one process alone, or needs all of its gradient."""
    model, objective = federation.model, method.objective
    if not getattr(objective, "adds_no_gradient" if model.trains_most else "task_loss_only", False):
        raise ConfigError(
            f"train.shard: the objective of method '{method.name}' needs the whole gradient of a full model, of which "
            "each process has a part: use fedavg or diloco, or adapters (model.adapt: lora)"
        )
    alone = {
        f"method '{method.name}' runs the model outside of training": method.exchange is not None,
        f"with method '{method.name}' every node has a model of its own": method.hierarchy is not None,
        "'personal' trains models of the silos' own": federation.personal is not None,
        "model.quantize gives tensors that cannot be divided": model.quantize is not None,
        "train.compile compiles whole blocks": federation.train.compile,
        f"task '{federation.task.name}' runs an encoder by itself": federation.task.name == "translate",
    }
    for reason in [reason for reason, given in alone.items() if given]:
        raise ConfigError(f"train.shard divides the model between processes, and {reason}: leave one of the two out")


def check_labels(federation: Federation) -> None:
    """Raise `ConfigError` if silos in other organisations would have to report labels without having agreed to it."""
    task = TASKS.build(federation.task)
    if task.needs_labels and not cast(LabelledTask, task).labels and not discovery_of(task).allowed:
        raise ConfigError(
            f"task '{federation.task.name}' lists no labels, and silos in other organisations do not report those in "
            "their data: list them in task.labels, or set task.discover_labels: true to let a silo report the labels "
            f"that at least task.min_label_rows ({discovery_of(task).min_rows}) of its rows have"
        )


def _check_texts(federation: Federation, method: Method, task: Task) -> None:
    if method.needs_text_vectors and task.auto != CLASSIFIER:
        raise ConfigError(
            f"method '{method.name}' looks at the representation of a whole text, which task "
            f"'{federation.task.name}' does not have: use it with 'classify' or 'pairs'"
        )


def _check_node(federation: Federation, name: str, node: Node, method: Method, task: Task) -> None:
    """A node's own settings; ``method``: the root's."""
    own = build_method(federation, node)
    _check_texts(federation, own, task)
    if method.hierarchy is None and own.hierarchy is not None:
        raise ConfigError(
            f"silos.{name}.method is '{own.name}', which works on the whole tree only: set it as the top-level 'method'"
        )
    if own.hierarchy != method.hierarchy:
        raise ConfigError(
            f"silos.{name}.method is '{own.name}', but all nodes of a tree must combine models in the same way "
            f"('{method.name}' at the top): give '{name}' a method that changes only local training, such as fedprox, "
            "or the same method and settings as at the top"
        )
    refuse_node(name, own, method, region=bool(node.silos))
    if node.model is not None and not (Path(str(node.model.path)) / "config.json").is_file():
        raise ConfigError(
            f"silos.{name}.model: {node.model.path or node.model.preset} is not a Hugging Face model folder; "
            "a node's own model is a folder with weights to start from"
        )
    for setting in ("server", "model") if method.hierarchy is None else ():
        if getattr(node, setting) is not None:
            raise ConfigError(
                f"silos.{name}.{setting}: with method '{method.name}' the root alone has one; "
                "use a method for trees (worldlm), or leave it out"
            )


def _check_tree(federation: Federation, method: Method) -> None:
    nodes = dict(walk(federation.silos))
    for name, recorded in federation.simulate.region_arrivals.items():
        if name not in nodes or not nodes[name].silos:
            raise ConfigError(
                f"simulate.region_arrivals names '{name}', which is not a region of this federation: use the "
                "federation file of the run that recorded it"
            )
        needed = federation.rounds * repeats(federation.silos)[name]
        if method.participation.synchronous and len(recorded) < needed:
            raise ConfigError(
                f"simulate.region_arrivals has {len(recorded)} rounds of '{name}', and the file asks for {needed}: use "
                "the rounds of the run that recorded it"
            )
        if region_rule(federation, nodes[name]).synchronous:
            raise ConfigError(
                f"simulate.region_arrivals has an order of updates for '{name}', which waits for all its nodes: leave "
                f"it out, or give '{name}' the method of the run that recorded it"
            )
    _check_filter(method)
    inner = [ROOT] * (federation.root is not None) + [
        n for n, node in walk(federation.silos) if node.silos and node.holds
    ]
    if method.hierarchy is None and inner and federation.kind == "federated":
        raise ConfigError(
            f"'{inner[0]}' has silos below it and data of its own, which method '{method.name}' does not train on: "
            "use a method for trees (worldlm), or make the data a silo"
        )
    if method.participation.on_trees and method.participation.buffer > len(federation.silos):
        raise ConfigError(
            f"method.buffer is {method.participation.buffer}, but the root has {len(federation.silos)} children: "
            f"set method.buffer to at most {len(federation.silos)}"
        )


def _check_filter(method: Method) -> None:
    """What key layers are filtered by must be sent."""
    tree = method.hierarchy
    if tree is None or tree.filter is None or not tree.filter.needs_key_layers:
        return
    if not tree.keys_travel or not tree.key_layers:
        raise ConfigError(
            f"method.filter.by is 'keys', but with method '{method.name}' no key layers are sent: use by: update"
        )
