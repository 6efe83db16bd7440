"""The Containerfile: its instructions are valid, what it copies exists, and it installs what a deployment asks for."""

import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
FILE = ROOT / "packaging" / "Containerfile"
INSTRUCTIONS = {
    *("ADD", "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "LABEL", "ONBUILD", "RUN"),
    *("SHELL", "STOPSIGNAL", "USER", "VOLUME", "WORKDIR"),
}
PINNED = re.compile(r"[\w.-]+\.[\w.-]+/[\w./-]+:\d+\.\d+\.\d+[\w.-]*(@sha256:[0-9a-f]{64})?")
# Extras that messages name and that the image leaves out, each with the reason.
LEFT_OUT = {
    "harness": "'hansa evaluate --harness' scores a finished model, where its benchmarks are",
    "mlflow": "a tracker of 'hansa run --track', and 'hansa push'",
    "notebook": "Result.plot in Python",
    "presidio": "its models are downloaded; a plug-in image adds it",
    "ray": "simulations on a Ray cluster",
    "tensorboard": "a tracker of 'hansa run --track'",
    "wandb": "a tracker of 'hansa run --track'",
}


def instructions(text: str) -> Iterator[tuple[str, str]]:
    """The instructions with their arguments, in which continued lines are joined and comments are left out."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    for line in re.sub(r"\\\n", " ", "\n".join(lines)).splitlines():
        name, _, rest = line.strip().partition(" ")
        yield name, rest.strip()


def lint(text: str, root: Path) -> Iterator[str]:
    """What is wrong with a Containerfile that is built with the folder ``root`` as context, in one sentence each."""
    found = list(instructions(text))
    names = [name for name, _ in found]
    if next((name for name in names if name != "ARG"), "") != "FROM":
        yield "the first instruction is not FROM"
    for name, rest in found:
        if name not in INSTRUCTIONS:
            yield f"{name} is no instruction"
        elif not rest:
            yield f"{name} has no argument"
        elif name == "FROM" and not PINNED.fullmatch(rest.split(" AS ")[0]):
            yield f"FROM {rest}: name the registry, and a tag with a full version"
        elif name == "ADD":
            yield f"ADD {rest}: it fetches addresses and unpacks archives; COPY does not"
        elif name == "COPY":
            yield from _copied(rest, root)
        elif name == "RUN":
            yield from _shell(rest)
        elif name in ("ENTRYPOINT", "CMD") and not re.fullmatch(r'\[("[^"]*"(, )?)+\]', rest):
            yield f"{name} {rest}: write a list, so that signals reach the program and no shell"
        elif name in ("WORKDIR", "VOLUME") and not rest.startswith("/"):
            yield f"{name} {rest}: write an absolute path"
        elif name == "EXPOSE" and not re.fullmatch(r"\d+(/(tcp|udp))?", rest):
            yield f"EXPOSE {rest}: write a port"
        elif name == "ENV" and "=" not in rest:
            yield f"ENV {rest}: write NAME=value"
    runs = [rest for name, rest in found if name == "RUN"]
    for folder in (rest for name, rest in found if name == "VOLUME"):
        if not any(re.search(rf"(install .*--owner|chown ).* {re.escape(folder)}( |$)", run) for run in runs):
            yield f"VOLUME {folder}: its owner is root, and the user of the image cannot write there"
    for name in ("CMD", "ENTRYPOINT", "STOPSIGNAL"):
        if names.count(name) > 1:
            yield f"{name} is there more than once"
    users = [rest for name, rest in found if name == "USER"]
    if not users or not re.fullmatch(r"[1-9]\d*(:\d+)?", users[-1]):
        yield "the last USER is not a number above 0, which Kubernetes needs for runAsNonRoot"


def _copied(rest: str, root: Path) -> Iterator[str]:
    words = [word for word in shlex.split(rest) if not word.startswith("--")]
    if len(words) < 2:
        yield f"COPY {rest}: name what is copied, and where to"
    for source in words[:-1]:
        if source in (".", "/") or ".." in source:
            yield f"COPY {source}: name single files and folders, so that no key or run gets into the image"
        elif not (root / source).exists():
            yield f"COPY {source}: it does not exist"
    if len(words) > 2 and not words[-1].endswith("/"):
        yield f"COPY {rest}: the target of several sources must end with a slash"


def _shell(command: str) -> Iterator[str]:
    done = subprocess.run(["sh", "-n", "-c", command], capture_output=True, text=True)
    if done.returncode:
        yield f"RUN {command}: {done.stderr.strip()}"
    for part in re.split(r"&&|\|\||;", command):
        words = shlex.split(part)
        if words[:2] == ["pip", "install"] and "--no-cache-dir" not in words:
            yield f"RUN {part.strip()}: without --no-cache-dir the image keeps every wheel twice"
        if words[:1] == ["sudo"]:
            yield f"RUN {part.strip()}: a build needs no sudo"
    if re.search(r"(curl|wget)\b.*\|\s*(ba)?sh", command):
        yield f"RUN {command}: it executes what it fetches"


def extras() -> dict[str, list[str]]:
    found: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    return found


def installed() -> set[str]:
    """The extras that the image installs."""
    [found] = re.findall(r"'\.\[([\w,]+)\]'", FILE.read_text())
    return set(found.split(","))


def asked_for(text: str) -> set[str]:
    """The extras that messages in a source file name: hansa[deploy]."""
    return {one for names in re.findall(r"hansa\[([\w,]+)\]", text) for one in names.split(",")}


def test_the_containerfile_is_valid() -> None:
    assert list(lint(FILE.read_text(), ROOT)) == []


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        (r"FROM .*", "FROM docker.io/library/python:latest", "a tag with a full version"),
        (r"FROM .*", "FROM docker.io/library/python", "a tag with a full version"),
        (r"FROM .*", "FROM python:3.11.14-slim-bookworm", "name the registry"),
        (r"FROM .*", "WORKDIR /", "the first instruction is not FROM"),
        (r"USER 10001", "USER root", "the last USER"),
        (r"USER 10001", "USER 0", "the last USER"),
        (r"USER 10001", "", "the last USER"),
        (r"COPY hansa ./hansa", "COPY hanse ./hansa", "COPY hanse: it does not exist"),
        (r"COPY hansa ./hansa", "COPY . ./", "so that no key or run gets into the image"),
        (r"COPY (pyproject.toml .*) \./", r"COPY \1 ./here", "must end with a slash"),
        (r"COPY hansa ./hansa", "ADD https://example.org/x.tar.gz /src", "COPY does not"),
        (r"STOPSIGNAL", "STOPSIGNALS", "STOPSIGNALS is no instruction"),
        (r"ENTRYPOINT .*", "ENTRYPOINT hansa", "write a list"),
        (r"EXPOSE .*", "EXPOSE https", "write a port"),
        (r"RUN useradd", "RUN (useradd", "RUN (useradd"),
        (r" && install .*", "", "its owner is root"),
        (r"pip install --no-cache-dir '", "pip install '", "--no-cache-dir"),
    ],
)
def test_the_lint_finds_mistakes(before: str, after: str, reason: str) -> None:
    text, count = re.subn(before, after, FILE.read_text(), count=1)
    assert count == 1
    assert any(reason in one for one in lint(text, ROOT)), list(lint(text, ROOT))


def test_torch_is_pinned_and_installed_before_what_depends_on_it() -> None:
    runs = [rest for name, rest in instructions(FILE.read_text()) if name == "RUN" and "pip install" in rest]
    assert [bool(re.search(r"\btorch==\d+\.\d+\.\d+$", run)) for run in runs] == [True, False]
    [version] = re.findall(r"torch==([\d.]+)", runs[0])
    assert f"torch=={version} " in (ROOT / "README.md").read_text()


def test_the_image_has_the_extras_of_a_deployment() -> None:
    wanted = {"dashboard", "deploy", "fedkc", "gguf", "instruct", "lora", "prepare", "privacy", "quantize"}
    assert installed() == wanted | {"translation"}
    assert installed() <= set(extras())


def test_every_extra_that_a_message_names_is_in_the_image_or_left_out_for_a_reason() -> None:
    named = set[str]().union(*(asked_for(file.read_text()) for file in (ROOT / "hansa").rglob("*.py")))
    assert {"deploy", "dashboard", "lora", "prepare"} <= named, "the messages are not found"
    assert named <= set(extras()), "a message names an extra that does not exist"
    assert named - installed() == set(LEFT_OUT) & named
    assert not installed() & set(LEFT_OUT)
    assert set(LEFT_OUT) <= set(extras())


def test_the_commands_of_a_deployment_ask_for_nothing_that_the_image_lacks() -> None:
    """Modules that only deployed nodes use name no extra that was left out."""
    folders = ("deploy", "dashboard", "client", "privacy", "methods", "models", "data")
    for file in (one for folder in folders for one in (ROOT / "hansa" / folder).rglob("*.py")):
        assert asked_for(file.read_text()) <= installed() | {"presidio"}, file
