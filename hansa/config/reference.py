"""docs/federation-file.md, written from the sections themselves: every setting with its default and the comment that
stands beside it in the code. Run `python -m hansa.config.reference > docs/federation-file.md`; a test
compares the page."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
TOP = "Federation"
REGISTERED = re.compile(r"(?:METHODS|TASKS)\.register\('([\w-]+)'\)")
FILES = ("config.py", "data/source.py", "simulation.py", "privacy/release.py", "methods/fltrust.py")
# Where each section stands in a file, in the order of reading.
PLACES = {
    "Federation": "at the top",
    "Node": "`silos.NAME`, beside what a source may say",
    "Source": "`silos.NAME`, or each of its `sources`",
    "Files": "`silos.NAME.aligned`",
    "Holder": "`silos.NAME` and `root`",
    "Model": "`model`",
    "Tokenizer": "`tokenizer`",
    "Data": "`data`",
    "Training": "`train`, `baseline`, `personal.train`",
    "Samples": "`train.samples`",
    "Adaptation": "`train.samples.adapt`",
    "Schedule": "`train.schedule`, `server.schedule`, `baseline.schedule`, `personal.train.schedule`",
    "Participation": "`participation`, at the top or at a region",
    "Server": "`server`, at the top or at a region",
    "Aggregation": "`aggregate`",
    "Weights": "`aggregate.weights`",
    "Upload": "`upload`; its steps: docs/uploads.md",
    "Secure": "`secure_aggregation`",
    "Privacy": "`silos.NAME.privacy`",
    "Personal": "`personal`",
    "Evaluation": "`evaluate`",
    "Checkpointing": "`checkpoint`",
    "Recording": "`record`",
    "Simulation": "`simulate`",
    "Poison": "`simulate.poison.NAME`",
    "Noise": "`method.noise` of fedkc",
    "Trust": "`method.filter` of worldlm, hierfavg and fedper",
}
PREFACE = """\
# Every setting of a federation file

Written by `python -m hansa.config.reference` from the code. A section may be left out where it has defaults.
`hansa check FED.yaml` says what follows from a file, `--set a.b=c` changes one setting for one command. A silo may also
say `clients: N` and `skew: a`, which deal its rows out to N silos (docs/exchange.md).
"""


@dataclass(frozen=True)
class Setting:
    name: str
    kind: str
    default: str
    comment: str


@dataclass(frozen=True)
class Described:
    name: str
    says: str
    settings: tuple[Setting, ...]
    registered: str = ""  # the name of a method or task


def page() -> str:
    known = {one.name: one for file in FILES for one in described(HERE / file)}
    parts = [PREFACE]
    for name, place in PLACES.items():
        parts.append(_section(f"## {_title(name)}", f"{place[0].upper()}{place[1:]}. {known[name].says}", known[name]))
    for folder, title in (("methods", "Methods: `method`"), ("tasks", "Tasks: `task`")):
        parts.append(f"## {title}\n")
        for file in sorted((HERE / folder).glob("*.py")):
            about = (ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").split("\n\n")[0]
            for one in described(file):
                if one.registered:
                    parts.append(_section(f"### `{one.registered}`", _line(one.says or about), one))
    return "\n".join(parts)


def _title(name: str) -> str:
    return "The file itself" if name == TOP else name


def _section(title: str, says: str, one: Described) -> str:
    rows = [f"| `{s.name}` | {_default(s.default)} | {s.kind.replace('|', '·')} | {s.comment} |" for s in one.settings]
    table = ["| setting | default | may be | |", "|---|---|---|---|", *rows, ""] if rows else []
    return "\n".join([title, "", says.strip(), "", *table])


def _default(code: str) -> str:
    """A default as a federation file would say it."""
    if not code:
        return "needed"
    if code in ("None", "()", "{}", "''") or re.fullmatch(r"\w+\(\)", code):
        return "–"
    named = re.fullmatch(r"\w+\(\w+='?([^',()]*)'?\)", code)
    plain = {"True": "true", "False": "false"}.get(code, code.strip("'"))
    return f"`{named[1] if named else plain}`"


def _line(text: str) -> str:
    return " ".join(text.split())


def described(file: Path) -> Iterator[Described]:
    """The sections of a module: classes whose fields are settings."""
    text = file.read_text(encoding="utf-8")
    comments, inherited = _comments(text), {"Section": tuple[Setting, ...]()}
    for node in ast.parse(text).body:
        bases = [ast.unparse(base) for base in node.bases] if isinstance(node, ast.ClassDef) else []
        if not isinstance(node, ast.ClassDef) or not any(base in inherited for base in bases):
            continue
        found = [
            re.fullmatch(r"(?:METHODS|TASKS)\.register\('([\w-]+)'\)", ast.unparse(d)) for d in node.decorator_list
        ]
        name = next((match[1] for match in found if match), "")
        own = [_setting(item, comments) for item in node.body if _is_setting(item)]
        fields = tuple({setting.name: setting for setting in (*inherited[bases[0]], *own)}.values())
        inherited[node.name] = fields
        yield Described(node.name, _line(ast.get_docstring(node) or ""), fields, name)


def _is_setting(item: ast.stmt) -> bool:
    return isinstance(item, ast.AnnAssign) and not ast.unparse(item.annotation).startswith("ClassVar")


def _setting(item: ast.stmt, comments: dict[int, str]) -> Setting:
    assert isinstance(item, ast.AnnAssign)
    default = ast.unparse(item.value) if item.value is not None else ""
    return Setting(ast.unparse(item.target), _kind(item.annotation), default, comments.get(item.end_lineno or 0, ""))


def _kind(annotation: ast.expr) -> str:
    """A type as people say it."""
    text = ast.unparse(annotation)
    text = re.sub(r"Literal\[([^\]]*)\]", lambda m: m[1].replace("'", "").replace(", ", " | "), text)
    text = re.sub(r"Annotated\[(\w+), Field\(([^)]*)\)\]", lambda m: f"{m[1]}, {_bounds(m[2])}", text)
    text = re.sub(r"tuple\[(.+), \.\.\.\]", r"list of \1", text.replace("'Node'", "Node"))
    words = {"Positive": "above 0", "Count": "1 or more", "Share": "0 to 1", "bool": "true | false", "str": "text"}
    words |= {"int": "whole number", "float": "number", "Named": "a name, or name and settings"}
    for code, word in words.items():
        text = re.sub(rf"\b{code}\b", word, text)
    return text.replace(" | None", "")


def _bounds(code: str) -> str:
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<", "min_length": "length ≥"}
    return ", ".join(re.sub(r"(\w+)=", lambda m: f"{signs[m[1]]} ", one) for one in code.split(", "))


def _comments(text: str) -> dict[int, str]:
    """Line → the comment at its end."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return {token.start[0]: token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT}


if __name__ == "__main__":
    print(page(), end="")
