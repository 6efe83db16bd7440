"""The model card: how a model was trained, on which data, its scores, how to use it, and what left the silos."""

from collections.abc import Iterator, Mapping
from math import isfinite
from pathlib import Path
from typing import Any

import yaml

from hansa.config.federation import Federation
from hansa.config.tree import holders
from hansa.core.messages import DataCard, NodeId
from hansa.models.settings import Model
from hansa.privacy.policy.disclosures import disclosures
from hansa.runs.remains import withdrawal_lines
from hansa.runs.shares import silo_shares
from hansa.tasks.base import Task

MetricsByGroup = Mapping[str, Mapping[str, float]]
# transformers class of the model → the name of its pipeline
PIPELINES = {
    "AutoModelForMaskedLM": "fill-mask",
    "AutoModelForSequenceClassification": "text-classification",
    "AutoModelForTokenClassification": "token-classification",
    "AutoModelForCausalLM": "text-generation",
    "AutoModelForSeq2SeqLM": "text2text-generation",
}


def model_card(
    federation: Federation,
    task: Task,
    cards: Mapping[NodeId, DataCard],
    metrics: MetricsByGroup,
    by_silo: Mapping[NodeId, MetricsByGroup],
    facts: Mapping[str, Any],
    silo: str,
) -> str:
    """The model card as Markdown with the metadata block of Hugging Face.

    ``metrics``: group → metric → value on the test data; ``by_silo``: the same of each silo that released its own;
    ``facts``: the ledger's facts about the run; ``silo``: the silo whose own model the card describes, empty for the
    shared model.
    """
    metadata = yaml.safe_dump(_metadata(federation, task, metrics, facts), sort_keys=False, allow_unicode=True)
    lines = [
        f"---\n{metadata}---",
        "",
        f"# {federation.name}" + (f": the model of silo {silo}" if silo else ""),
        "",
        _origin(federation, facts),
        "",
        "## Use",
        "",
        *_usage(federation.model, task),
        "",
        "## Data",
        "",
        "| silo | training samples | per round | weight | test samples | languages or domains |",
        "|---|---:|---:|---:|---:|---|",
        *(
            f"| {one.name} | {one.samples:,} | {one.per_round:,} | {_share(one.weight)} | {one.test:,} | "
            f"{', '.join(cards[one.name].groups['train'])} |"
            for one in silo_shares(federation, cards)
        ),
        "",
        "## Scores on the test data",
        "",
        *_table("language or domain", metrics),
        "",
        *(["By silo:", "", *_table("silo", _named(by_silo)), ""] if len(by_silo) > 1 else []),
        "## Limits",
        "",
        *(f"- {line}" for line in _limits(federation, facts)),
        "",
        "## What left the silos",
        "",
        *(f"- {line}" for line in disclosures(federation, facts.get("survey", {"minimum": 0, "silos": {}}))),
        "",
        *(part for line in withdrawal_lines(facts) for part in (line, "")),
        "Versions: " + ", ".join(f"{k} {v}" for k, v in facts.get("versions", {}).items()) + ".",
        "",
    ]
    return "\n".join(lines)


def languages(federation: Federation) -> list[str]:
    """The language codes of all sources."""
    sources = [source for node in holders(federation).values() for source in node.sources]
    return sorted({code for s in sources for code in (s.language, s.target_language) if code})


def _metadata(federation: Federation, task: Task, metrics: MetricsByGroup, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata that a hub reads, with the scores as a model index."""
    pipeline = PIPELINES.get(task.auto)
    adapter = federation.model.keeps_base and federation.model.adapt == "lora"
    found: dict[str, Any] = {"library_name": "peft" if adapter else "transformers"}
    if codes := languages(federation):
        found["language"] = codes
    if federation.licence:
        found["license"] = federation.licence
    if pipeline:
        found["pipeline_tag"] = pipeline
    if base := facts.get("base_model"):
        found |= {"base_model": base, "base_model_relation": "adapter" if adapter else "finetune"}
    found["tags"] = ["federated-learning", "hansa"]
    results = [
        {
            "task": {"type": pipeline or federation.task.name, "name": federation.task.name},
            "dataset": {"type": "private", "name": f"{federation.name}, test data: {group}"},
            "metrics": [
                {"type": name, "name": name, "value": round(value, 6)}
                for name, value in values.items()
                if isfinite(value)
            ],
        }
        for group, values in metrics.items()
    ]
    if results:
        found["model-index"] = [{"name": federation.name, "results": results}]
    return found


def _origin(federation: Federation, facts: Mapping[str, Any]) -> str:
    train = federation.train
    said = (
        f"Trained with Hansa ({federation.kind}, method `{federation.method.name}`, task `{federation.task.name}`, "
        f"{federation.rounds} rounds, seed {federation.seed}; {train.optimizer}, learning rate {train.lr:g}, batches "
        f"of {train.batch}, at most {federation.data.max_length} tokens). The training text did not leave the silos."
    )
    if base := facts.get("base_model"):
        new = facts.get("new_weights", [])
        said += f" It starts from `{base}`" + (f"; {len(new)} tensors of its head were new." if new else ".")
    if best := facts.get("best"):
        said += (
            f" This is the model after round {best['round']}, which had the best {best['metric']} on validation data."
        )
    return said


def _usage(model: Model, task: Task) -> Iterator[str]:
    """A block of Python that loads the model with plain transformers."""
    pipeline = PIPELINES.get(task.auto)
    yield "```python"
    if model.keeps_base and model.adapt == "lora":
        yield "from peft import PeftModel"
        yield f"from transformers import {task.auto}, AutoTokenizer"
        yield ""
        yield f'base = {task.auto}.from_pretrained("{Path(str(model.path)).name}")  # the base that was adapted'
        yield 'model = PeftModel.from_pretrained(base, "FOLDER")'
        yield 'tokenizer = AutoTokenizer.from_pretrained("FOLDER")'
    elif pipeline in (None, "text2text-generation"):
        yield f"from transformers import {task.auto}, AutoTokenizer"
        yield ""
        yield f'model = {task.auto}.from_pretrained("FOLDER")'
        yield 'tokenizer = AutoTokenizer.from_pretrained("FOLDER")'
    else:
        extra = ', aggregation_strategy="first"' if pipeline == "token-classification" else ""
        yield "from transformers import pipeline"
        yield ""
        yield f'use = pipeline("{pipeline}", model="FOLDER"{extra})  # FOLDER: where this file lies'
        yield 'print(use("…"))'
    yield "```"


def _limits(federation: Federation, facts: Mapping[str, Any]) -> Iterator[str]:
    """What a reader must know before using the model."""
    codes = languages(federation)
    yield (
        "It was scored on held-out data of the same silos"
        + (f" ({', '.join(codes)})" if codes else "")
        + " and on nothing else: other hospitals, languages or kinds of text may give other scores."
    )
    yield f"Texts longer than {federation.data.max_length} tokens were cut into pieces of that length."
    private = facts.get("privacy")
    yield (
        f"Differential privacy: {len(private)} silos with a stated price (see the report)."
        if private
        else "It was trained without differential privacy: a model can repeat parts of its training text."
    )
    if not federation.licence:
        yield "No licence was stated (`licence:` in the federation file). That of the base model applies in any case."


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def _named(by_silo: Mapping[NodeId, MetricsByGroup]) -> dict[str, Mapping[str, float]]:
    """The scores of silos in rows: by silo, and by group where a silo has several."""
    return {
        silo if len(groups) == 1 else f"{silo}: {group}": values
        for silo, groups in by_silo.items()
        for group, values in groups.items()
    }


def _table(head: str, metrics: MetricsByGroup) -> Iterator[str]:
    columns = list(dict.fromkeys(metric for values in metrics.values() for metric in values))
    yield f"| {head} | {' | '.join(columns)} |"
    yield "|---" + "|---:" * len(columns) + "|"
    for group, values in metrics.items():
        yield f"| {group} | " + " | ".join(f"{values.get(c, float('nan')):.4g}" for c in columns) + " |"
