"""Inference with the models of a run: score them on a file or on the silos' data."""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from hansa.client.evaluation import evaluate, whole
from hansa.client.host import SiloHost
from hansa.client.personalisation import overall
from hansa.client.runtime import Runtime
from hansa.config.federation import Federation
from hansa.config.file import parse
from hansa.config.tree import holders
from hansa.core import device
from hansa.core.errors import UserError, did_you_mean
from hansa.core.learner import on_device
from hansa.core.messages import PARTS
from hansa.data import examples
from hansa.data.source import Source
from hansa.files import atomically
from hansa.models import build
from hansa.models.adapt import merge_adapters
from hansa.models.peft_folder import is_adapter, load_adapter
from hansa.runs.directory import RunDirectory

SHARED = "shared"
Scored = dict[str, dict[str, float]]  # on what → metric → value
Tell = Callable[[str, int, int], None]  # name, its number and how many there are


def open_run(folder: Path) -> Runtime:
    """The runtime of a run directory; raises `UserError` if it is none."""
    file = folder / "federation.yaml"
    if not file.is_file():
        raise UserError(f"{folder}: this is not a run directory (it has no federation.yaml)")
    return Runtime(parse(yaml.safe_load(file.read_text(encoding="utf-8")), where=str(file)), folder)


def load(folder: Path, silo: str | None = None, checkpoint: int | None = None) -> tuple[Runtime, Any]:
    """Return the runtime of a run and one of its models: the final one, a silo's own, or a checkpoint's.

    Raises `UserError` if there is no such model.
    """
    runtime, model = _load(folder, silo, checkpoint)
    return runtime, on_device(model, device.choose()).eval()


def _load(folder: Path, silo: str | None, checkpoint: int | None) -> tuple[Runtime, Any]:
    runtime = open_run(folder)
    if checkpoint is not None:
        directory = RunDirectory(folder)
        if checkpoint not in directory.checkpoints():
            kept = ", ".join(map(str, directory.checkpoints())) or "none"
            raise UserError(f"{folder}: there is no checkpoint of round {checkpoint}; kept are: {kept}")
        learner = runtime.fresh()
        learner.state.write(directory.restore(checkpoint, {}).model)
        return runtime, learner.model
    if silo is not None:
        own = own_models(folder)
        if silo not in own:
            hint = did_you_mean(silo, own) if own else "this run has no personal models: leave --silo out"
            raise UserError(f"{folder}: silo '{silo}' has no model of its own; {hint}")
        return runtime, _final(runtime, folder / "silos" / silo / "model")
    if not has_model(folder):
        raise UserError(f"{folder}: the run has no final model yet; finish it with 'hansa run … --resume'")
    return runtime, _final(runtime, folder / "model")


def has_model(folder: Path) -> bool:
    """Whether a run has a final shared model."""
    return (folder / "model" / "config.json").is_file() or is_adapter(folder / "model")


def _final(runtime: Runtime, folder: Path, quantized: bool = True) -> Any:
    """The model of a folder that a run wrote; adapters together with the run's base."""
    if is_adapter(folder):
        return load_adapter(runtime.base(quantized=quantized), folder)
    return build.load(str(folder), runtime.task.auto)


def write_model(folder: Path, silo: str | None, out: Path, merged: bool) -> None:
    """Write a final model of a run, with its tokenizer, as a folder of its own.

    ``merged``: adapters are merged into the base, which is loaded without quantisation for that; else they are written
    as PEFT has them. Raises `UserError` if there is no such model.
    """
    source = folder / "model" if silo is None else folder / "silos" / silo / "model"
    runtime = open_run(folder)
    if not is_adapter(source):
        _load(folder, silo, None)  # says what is missing
    with atomically(out) as draft:
        if merged and is_adapter(source):
            merge_adapters(_final(runtime, source, quantized=False)).save_pretrained(draft)
            runtime.vocabulary.tokenizer.save_pretrained(draft)
        else:
            shutil.copytree(source, draft, dirs_exist_ok=True)


def own_models(folder: Path) -> list[str]:
    """The silos that have a model of their own."""
    return sorted(p.parent.name for p in (folder / "silos").glob("*/model"))


def every_model(
    folder: Path, scores: Callable[[Runtime, Any], Scored], tell: Tell = lambda name, number, of: None
) -> dict[str, Scored]:
    """Scores of all final models of a run by name: the shared one, where there is one, and the silos' own.

    ``tell``: is called before each model.
    """
    names, found = [*([SHARED] if has_model(folder) else []), *own_models(folder)], dict[str, Scored]()
    for number, name in enumerate(names, 1):
        tell(name, number, len(names))
        found[name] = scores(*load(folder, None if name == SHARED else name))
    if not found:
        load(folder)  # says that there is none yet
    return found


def on_silos(runtime: Runtime, model: Any, share: float = 1.0, tell: Tell = lambda name, number, of: None) -> Scored:
    """Metrics of a model on every silo's test data, or a share of it, by silo; ``tell`` is called before each silo."""
    host, seed, found = SiloHost(runtime), runtime.federation.seed, {}
    names = list(holders(runtime.federation))
    for number, name in enumerate(names, 1):
        tell(name, number, len(names))
        held = host.silo(name).resident.examples("test")
        # All of it is cut as in a run's final evaluation: the same questions. A share of it fits into fewer batches.
        parts = PARTS if share == 1.0 else 1
        scores = evaluate(model, runtime.task, held, runtime.vocabulary, seed, share, parts=parts, decode=True)
        if scores.sums:
            found[name] = overall(runtime.task, scores)
    return found


def columns_of(federation: Federation) -> dict[str, str]:
    """The names of fields in the files of a run's first silo: other files probably have the same."""
    source = next((source for node in holders(federation).values() for source in node.sources), None)
    names = ("text", "label", "tokens", "tags", "second", "target")
    return {name: getattr(source, name) for name in names} if source is not None else {}


def score(
    runtime: Runtime,
    model: Any,
    file: Path,
    fields: Mapping[str, str],
    tell: Callable[[str], None] = lambda problem: None,
) -> Scored:
    """Metrics of a model on all rows of a file; rows that cannot be used are told."""
    if not file.exists():
        raise UserError(f"--data: {file} does not exist")
    source = Source(train=str(file), test=str(file), **fields)  # type: ignore[arg-type]
    held = examples.load(
        [source],
        "test",
        runtime.federation.data.model_copy(update={"max_bad_rows": 1.0}),  # they are told, and the others scored
        [file.name.split(".")[0]],
        lambda some, s: runtime.task.encode(some, s, runtime.vocabulary),
        runtime.fingerprint,
    )
    for problem in held.problems:
        tell(problem)
    # Cut as in a run's final evaluation: the same questions, so the same figures for the same file.
    scores = whole(
        evaluate(model, runtime.task, held, runtime.vocabulary, runtime.federation.seed, parts=PARTS, decode=True)
    )
    return {group: runtime.task.metrics(sums) for group, sums in scores.sums.items()}
