"""What is refused before anything is loaded or written. It needs no model, so that a mistake is answered at once."""

from pathlib import Path
from typing import Any, cast

from hansa.config.compatibility import refuse_node
from hansa.config.federation import Federation
from hansa.config.method import build_method
from hansa.config.nodes import ROOT, Node, walk
from hansa.config.plugins import find_plugin, load_entry_points, load_plugins
from hansa.config.sections import Training
from hansa.config.tree import holders, protected
from hansa.core.compression import COMPRESSORS
from hansa.core.errors import ConfigError, DataError
from hansa.core.method import AGGREGATORS, METHODS, Method
from hansa.core.registry import Registry
from hansa.core.settings import Named
from hansa.data.deidentification.kinds import built_in
from hansa.tasks.base import TASKS, LabelledTask, MultiTextTask, Task, discovery_of

STEP_SETTINGS = ("packing", "precision", "gradient_checkpointing", "compile", "processes")
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
    path = federation.model.path
    if path is not None and path.startswith((".", "/", "~")) and not (Path(path) / "config.json").is_file():
        raise ConfigError(
            f"model: {path} is not a Hugging Face model folder (no config.json there); give such a folder, a hub id, "
            "or a preset: mini, tiny, small, base"
        )


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
    plain = Training()
    changed = [n for n in STEP_SETTINGS if getattr(federation.train, n) != getattr(plain, n)]
    inside = [name for name, privacy in sorted(protected(federation).items()) if privacy.unit != "silo"]
    if changed and inside:
        raise ConfigError(
            f"silos.{inside[0]}.privacy: the gradient of each {protected(federation)[inside[0]].unit} is computed by "
            f"itself, without train.{changed[0]}: leave it out, or use 'unit: silo'"
        )


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
        raise ConfigError(f"silos.{name}.method is '{own.name}': one for whole trees, which the root must have too")
    if own.hierarchy != method.hierarchy:
        raise ConfigError(
            f"silos.{name}.method is '{own.name}' with a tree of its own, but models meet by one rule on the whole "
            f"tree ('{method.name}' at the root): give a node a method for its own steps (fedprox), or the same one"
        )
    refuse_node(name, own, method)
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
            f"method.buffer is {method.participation.buffer}, but {len(federation.silos)} nodes stand below the root"
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
