"""The JSON Schema of federation files, so that editors complete and check them.

`hansa schema > federation.schema.json` writes it; `# yaml-language-server: $schema=federation.schema.json` on the first
line of a federation file names it.
"""

from typing import Any

from pydantic import BaseModel

from hansa import compressors, methods, tasks  # noqa: F401  they register themselves
from hansa.config.federation import Federation
from hansa.core.compression import COMPRESSORS
from hansa.core.method import AGGREGATORS, METHODS
from hansa.core.registry import Registry
from hansa.data.source import Source
from hansa.tasks.base import TASKS

TEXT = {"type": "string"}
SWITCH = {"type": "boolean"}
# Sections that a file may also write in a short form, which a validator of the section expands.
SHORT_FORMS: dict[str, list[dict[str, Any]]] = {
    "Model": [TEXT],
    "Schedule": [TEXT],
    "Weights": [TEXT],
    "Node": [TEXT],
    "Holder": [TEXT],
    "Files": [TEXT],
    "Named": [TEXT],
    "AdaptiveSampling": [SWITCH],
    "SecureAggregation": [SWITCH],
}


def federation_schema() -> dict[str, Any]:
    """The JSON Schema of a federation file, with all registered methods, tasks, compressors and aggregators."""
    schema = Federation.model_json_schema()
    parts: dict[str, Any] = schema["$defs"]
    named: dict[str, Registry[Any]] = {"method": METHODS, "task": TASKS, "upload step": COMPRESSORS}
    parts |= {_title(what): _choice(registry, parts) for what, registry in named.items()}
    properties = schema["properties"]
    for setting in ("method", "task"):
        properties[setting] = _described(properties[setting], {"$ref": f"#/$defs/{_title(setting)}"})
    parts["Node"]["properties"]["method"] = {"$ref": f"#/$defs/{_title('method')}"}
    parts["Upload"] = _upload(parts["Upload"])
    parts["Aggregation"] = _aggregation(parts["Aggregation"], parts)
    _data_beside_nodes(parts)
    for name, forms in SHORT_FORMS.items():
        parts[name] = {"anyOf": [*forms, parts[name]]}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "Hansa federation file"}


def _title(what: str) -> str:
    return "".join(word.capitalize() for word in what.split()) + "Name"


def _described(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    return {key: old[key] for key in ("description", "default") if key in old} | new


def _choice(registry: Registry[Any], parts: dict[str, Any]) -> dict[str, Any]:
    """A registered name, or a mapping of the name and its settings."""
    return {
        "anyOf": [
            {"enum": sorted(registry.entries)},
            *(_entry("name", name, model, parts) for name, model in sorted(registry.entries.items())),
        ]
    }


def _entry(key: str, name: str, model: type[BaseModel], parts: dict[str, Any]) -> dict[str, Any]:
    own = model.model_json_schema()
    parts |= {title: part for title, part in own.pop("$defs", {}).items() if title not in parts}
    properties = {key: {"const": name}} | own.get("properties", {})
    description = {"description": own["description"]} if "description" in own else {}
    return description | {
        "type": "object",
        "properties": properties,
        "required": [key, *own.get("required", [])],
        "additionalProperties": False,
    }


def _upload(section: dict[str, Any]) -> dict[str, Any]:
    """A chain as text (`top-k+int8`), one compressor, a list of them, or the section itself."""
    step = {"$ref": f"#/$defs/{_title('upload step')}"}
    steps = {"anyOf": [TEXT, step, {"type": "array", "items": step}]}
    section["properties"]["steps"] = _described(section["properties"]["steps"], steps)
    return {"anyOf": [TEXT, step, {"type": "array", "items": step}, section]}


def _aggregation(section: dict[str, Any], parts: dict[str, Any]) -> dict[str, Any]:
    """The name of a rule, or a mapping of the rule, its settings and the weights."""
    weights = {"weights": section["properties"]["weights"]}
    rules = [_entry("rule", name, model, parts) for name, model in sorted(AGGREGATORS.entries.items())]
    for rule in rules:
        rule["properties"] |= weights
    plain = {"type": "object", "properties": weights, "required": ["weights"], "additionalProperties": False}
    return {"anyOf": [{"enum": sorted(AGGREGATORS.entries)}, *rules, plain]}


def _data_beside_nodes(parts: dict[str, Any]) -> None:
    """A node with one source may have the source's settings beside its own; a silo may be split into clients."""
    source = Source.model_json_schema()["properties"]
    clients = {
        "clients": {"type": "integer", "minimum": 1, "description": "Split the silo into this many clients."},
        "skew": {"type": "number", "exclusiveMinimum": 0, "description": "Dirichlet parameter of their labels."},
    }
    for name, more in (("Holder", {}), ("Node", clients)):
        own = parts[name]["properties"]
        parts[name]["properties"] = source | more | own
