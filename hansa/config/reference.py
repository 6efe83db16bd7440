"""Writes docs/federation-file.md from the settings: `python -m hansa.config.reference > docs/federation-file.md`.

Names, types, defaults and descriptions come from the same definitions as the JSON Schema (`hansa schema`). A test
compares the page with the code.
"""

import re
import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from hansa import compressors, methods, tasks  # noqa: F401  they register themselves
from hansa.config.federation import Federation
from hansa.config.nodes import Holder, Node
from hansa.config.sections import (
    AdaptiveSampling,
    Aggregation,
    Checkpointing,
    DistributedNoise,
    Download,
    Evaluation,
    Personal,
    Privacy,
    ReleaseLog,
    Samples,
    SecureAggregation,
    Server,
    Training,
    Upload,
    Weights,
)
from hansa.core.compression import COMPRESSORS
from hansa.core.method import AGGREGATORS, METHODS
from hansa.core.participation import Participation
from hansa.core.registry import Registry
from hansa.core.schedules import Schedule
from hansa.core.settings import Named
from hansa.core.simulation import Poison, Simulation
from hansa.data.settings import Data
from hansa.data.source import Files, Source
from hansa.methods.centroid_noise import Noise
from hansa.methods.fltrust import TrustFilter
from hansa.models.settings import Lora, Model, Tokenizer
from hansa.tasks.base import TASKS

# Where each section stands in a file, in the order of reading.
PLACES: dict[type[BaseModel], str] = {
    Federation: "the file itself",
    Node: "`silos.NAME`, beside the settings of a source",
    Source: "`silos.NAME`, or each of its `sources`",
    Files: "`silos.NAME.aligned`",
    Holder: "`silos.NAME` and `root`",
    Model: "`model`",
    Lora: "`model.lora`",
    Tokenizer: "`tokenizer`",
    Data: "`data`",
    Training: "`train`, `baseline`, `personal.train`",
    Samples: "`train.samples`",
    AdaptiveSampling: "`train.samples.adapt`",
    Schedule: "`train.schedule`, `server.schedule`, `baseline.schedule`, `personal.train.schedule`",
    Participation: "`participation`, at the top or at a region",
    Server: "`server`, at the top or at a region",
    Aggregation: "`aggregate`",
    Weights: "`aggregate.weights`",
    Upload: "`upload`",
    Download: "`download`",
    SecureAggregation: "`secure_aggregation`",
    DistributedNoise: "`secure_aggregation.noise`",
    Privacy: "`silos.NAME.privacy`",
    Personal: "`personal`",
    Evaluation: "`evaluate`",
    Checkpointing: "`checkpoint`",
    ReleaseLog: "`release_log`",
    Simulation: "`simulate`",
    Poison: "`simulate.poison.NAME`",
    Noise: "`method.noise` of fedkc",
    TrustFilter: "`method.filter` of worldlm, hierfavg and fedper",
}
REGISTRIES: dict[str, Registry[Any]] = {
    "Methods: `method`": METHODS,
    "Tasks: `task`": TASKS,
    "Compressors: `upload`": COMPRESSORS,
    "Aggregators: `aggregate.rule`": AGGREGATORS,
}
PREFACE = """\
# Every setting of a federation file

Written by `python -m hansa.config.reference` from the code; do not edit. A section may be left out where it has
defaults. `hansa schema` prints the same as JSON Schema, with which editors complete and check federation files. `hansa
check FED.yaml` shows what follows from a file, `--set a.b=c` changes one setting for one command. A silo may also have
`clients: N` and `skew: a`, which split its rows among N silos ([Exchange](exchange.md)).
"""
WORDS: dict[Any, str] = {str: "text", int: "whole number", float: "number", bool: "true · false"}
BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def page() -> str:
    """The whole page, as Markdown."""
    parts = [PREFACE]
    for section, place in PLACES.items():
        title = "The file itself" if section is Federation else section.__name__
        parts.append(_section(f"## {title}", f"{place[0].upper()}{place[1:]}. {_summary(section)}", section))
    for title, registry in REGISTRIES.items():
        parts.append(f"## {title}\n")
        own = {name: one for name, one in registry.entries.items() if one.__module__.startswith("hansa.")}
        for name, section in sorted(own.items()):
            parts.append(_section(f"### `{name}`", _summary(section) or _paper(section), section))
    return "\n".join(parts)


def _summary(section: type[BaseModel]) -> str:
    """The docstring of a section, in one paragraph; empty if it has none of its own."""
    return " ".join((section.__doc__ or "").split()) if "__doc__" in vars(section) else ""


def _paper(section: type[BaseModel]) -> str:
    """The first paragraph of the module that a method stands in: its citation."""
    import sys

    return " ".join((sys.modules[section.__module__].__doc__ or "").split("\n\n")[0].split())


def _section(title: str, says: str, section: type[BaseModel]) -> str:
    rows = [
        f"| `{name}` | {_default(field)} | {kind(field)} | {field.description or ''} |"
        for name, field in section.model_fields.items()
    ]
    table = ["| setting | default | values | meaning |", "|---|---|---|---|", *rows, ""] if rows else []
    return "\n".join([title, "", says.strip(), "", *table])


def _default(field: FieldInfo) -> str:
    """A default as a federation file would write it."""
    value = field.default
    if field.is_required() or value is PydanticUndefined:
        return "required"
    if isinstance(value, Named):
        return f"`{value.name}`"
    if value is None or value == () or value == {} or value == "" or isinstance(value, BaseModel):
        return "–"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{list(value)}`" if isinstance(value, tuple) else f"`{value}`"


def kind(field: FieldInfo) -> str:
    """The values that a setting takes, in words."""
    return " ".join([_kind(field.annotation), *_bounds(field.metadata)]).strip()


def _kind(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return " ".join([_kind(arguments[0]), *_bounds(arguments[1:])])
    if origin in (Union, types.UnionType):
        return " · ".join(_kind(one) for one in arguments if one is not type(None))
    if origin is Literal:
        return " · ".join(f"`{one}`" for one in arguments)
    if origin is tuple:
        inner = [one for one in arguments if one is not Ellipsis]
        return f"list of {_kind(inner[0])}" if Ellipsis in arguments else f"[{', '.join(map(_kind, inner))}]"
    if origin is dict:
        return f"name → {_kind(arguments[1])}"
    if annotation is Named:
        return "a name, or a mapping of name and settings"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return f"section {annotation.__name__}"
    return WORDS.get(annotation, str(annotation))


def _bounds(metadata: Any) -> Iterator[str]:
    for one in metadata:
        constraints = one.metadata if isinstance(one, FieldInfo) else [one]
        for constraint in constraints:
            found = re.match(r"(Ge|Gt|Le|Lt)\(\w+=(.*)\)", repr(constraint))
            if found:
                yield f"{BOUNDS[found[1].lower()]} {found[2]}"


if __name__ == "__main__":
    print(page(), end="")
