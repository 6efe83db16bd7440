"""Evaluation by lm-evaluation-harness (Gao et al., 2021) on local task files: `hansa evaluate RUN --harness FOLDER`.

The folder has task files as the library describes them (YAML), which name local data files relative to the folder. The
run's model, with its adapters, is handed over as it is in memory; nothing is downloaded: tasks of the library's own,
whose data is on a hub, are not loaded, and a task that names a hub's data set fails. A task file may name Python
functions (``!function``), which are executed: use task files that you trust.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hansa.core.errors import DataError, UserError
from hansa.runs.few_shot import BATCH, CAUSAL
from hansa.tasks.base import Vocabulary


def evaluate_harness(
    model: Any, auto: str, vocabulary: Vocabulary, folder: Path, seed: int
) -> dict[str, dict[str, float]]:
    """Task → metric → value, for every task file in a folder.

    Raises `UserError` if the library is not installed, the model is not a causal language model, or the folder has no
    tasks, and `DataError` if the library cannot read them.
    """
    if auto != CAUSAL:
        raise UserError("--harness scores continuations, which needs a model of the task causal-lm or instruct")
    if not folder.is_dir() or not any(folder.rglob("*.yaml")):
        raise UserError(f"--harness {folder}: this is no folder with task files (*.yaml) of lm-evaluation-harness")
    try:
        import lm_eval
        from lm_eval.models.huggingface import HFLM
        from lm_eval.tasks import TaskManager
    except ImportError:
        raise UserError("--harness needs lm-evaluation-harness: pip install 'hansa[harness]'") from None
    with _offline(), _inside(folder):
        tasks = TaskManager(include_path=str(folder.resolve()), include_defaults=False)
        names = sorted(tasks.all_subtasks)
        if not names:
            raise UserError(f"--harness {folder}: its YAML files describe no task (a task has 'task: NAME')")
        given: Any = HFLM(pretrained=model, tokenizer=vocabulary.tokenizer, batch_size=BATCH)
        try:
            found = lm_eval.simple_evaluate(
                model=given,
                tasks=names,
                task_manager=tasks,
                bootstrap_iters=0,
                random_seed=seed,
                numpy_random_seed=seed,
                torch_random_seed=seed,
                fewshot_random_seed=seed,
                log_samples=False,
            )
        except (ValueError, KeyError, OSError) as error:  # what the library raises for a task or data it cannot read
            first = str(error).strip().partition("\n")[0][:200]
            raise DataError(f"--harness {folder}: a task cannot be used ({type(error).__name__}: {first})") from None
    assert found is not None
    return {name: _numbers(scores) for name, scores in found["results"].items()}


def _numbers(scores: dict[str, Any]) -> dict[str, float]:
    """The library's scores by their names without the filter: ``acc,none`` becomes ``acc``."""
    return {
        name.removesuffix(",none"): float(value)
        for name, value in scores.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and "stderr" not in name
    }


@contextmanager
def _offline() -> Iterator[None]:
    """Keep the libraries of the hub from opening connections; they read the environment when they are imported."""
    import datasets
    import huggingface_hub.constants as hub

    before = hub.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE
    hub.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        hub.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE = before


@contextmanager
def _inside(folder: Path) -> Iterator[None]:
    """Work in a folder, so that task files may name data relative to it."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
