"""A foreign federation file names code: commands that only read the file do not execute it.

The control of each test executes it, with ``--run-plugins`` or by running the file.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hansa.cli.main import app
from hansa.config.file import read
from hansa.core.errors import ConfigError
from hansa.core.method import METHODS
from tests.cli.test_cli import ok, runner
from tests.conftest import WORDS, write_words

CODE = """
from pathlib import Path
from hansa.core.method import METHODS
from hansa.core.settings import Section
from hansa.methods.fedavg import fedavg

Path({proof!r}).write_text("executed")

@METHODS.register("{name}")
class Mine(Section):
    def build(self):
        return fedavg()

class Finder:
    def find(self, text, language):
        return []
"""


@pytest.fixture(autouse=True)
def _registry_as_before() -> Iterator[None]:
    before = dict(METHODS.entries)
    yield
    METHODS.entries.clear()
    METHODS.entries.update(before)


@pytest.fixture
def proof(tmp_path: Path) -> Path:
    """The file that the plug-in writes when it is executed."""
    return tmp_path / "executed"


@pytest.fixture
def write(tmp_path: Path, proof: Path) -> Any:
    """A federation file with a plug-in, or with a finder of personal details in a file beside it."""

    def written(method: str, **data: Any) -> Path:
        (tmp_path / "evil.py").write_text(CODE.format(proof=str(proof), name=f"mine-{tmp_path.name}"))
        write_words(tmp_path / "north.jsonl", WORDS["north"], 40)
        settings = {
            "name": "small",
            "method": method.format(mine=f"mine-{tmp_path.name}"),
            "tokenizer": {"size": 330, "min_count": 2},
            "data": {"max_length": 16, "valid": 0.0, "test": 0.2, **data},
            "silos": {name: {"train": "north.jsonl", "language": "it"} for name in ("north", "south", "east")},
            **({} if data else {"plugins": ["evil.py"]}),
        }
        file = tmp_path / "federation.yaml"
        file.write_text(json.dumps(settings))
        return file

    return written


def test_check_executes_a_plug_in_only_if_asked(write: Any, proof: Path) -> None:
    file = write("{mine}")
    assert read(file).plugins
    said = " ".join(ok("check", str(file)).split())
    assert "which was not executed, so these were not checked: the task, the method" in said
    assert "Add --run-plugins" in said
    told = json.loads(ok("check", str(file), "--format", "json"))
    assert told["code"] == [str(file.parent / "evil.py")]
    assert "method" in " ".join(told["not_checked"])
    ok("schema")
    assert not proof.exists()
    assert "What leaves the silos" in ok("check", str(file), "--run-plugins")
    assert proof.exists(), "the control"


def test_check_does_not_execute_a_finder_of_personal_details(write: Any, proof: Path) -> None:
    file = write("fedavg", deidentify="evil.py:Finder")
    assert "was not executed" in " ".join(ok("check", str(file)).split())
    assert not proof.exists()
    ok("check", str(file), "--run-plugins")
    assert proof.exists(), "the control"


@pytest.mark.parametrize("command", ["policy", "kit"])
@pytest.mark.parametrize("method", ["fedavg", "{mine}"])
def test_kits_and_policies_execute_a_plug_in_only_if_asked(
    write: Any, proof: Path, tmp_path: Path, command: str, method: str
) -> None:
    """With a method of Hansa nothing of a plug-in is needed; with the plug-in's own, the command says what to do."""
    file = write(method)
    policy = tmp_path / "policy.yaml"
    release = "{tensors: any, samples: true, metrics: true, words: 2}"
    policy.write_text(f"rules: {{all: {{federations: [small], methods: any, release: {release}}}}}")
    line = ["kit", "create", str(file), "--out", str(tmp_path / "kits")]
    line = line if command == "kit" else ["check", "--policy", str(policy), str(file)]
    if method == "fedavg":
        ok(*line)
    else:
        with pytest.raises(ConfigError, match="were not executed: add --run-plugins, if you trust them"):
            runner.invoke(app, line, catch_exceptions=False, standalone_mode=False)
        assert not (tmp_path / "kits").exists()
    assert not proof.exists()
    if method != "fedavg":
        ok(*line, "--run-plugins")
        assert proof.exists(), "the control"


def test_missing_files_are_found_without_executing_anything(write: Any, proof: Path) -> None:
    file = write("{mine}")
    (file.parent / "north.jsonl").unlink()
    with pytest.raises(Exception, match=r"north\.jsonl does not exist"):
        runner.invoke(app, ["check", str(file)], catch_exceptions=False, standalone_mode=False)
    (file.parent / "evil.py").unlink()
    with pytest.raises(ConfigError, match="there is no such Python file"):
        runner.invoke(app, ["check", str(file)], catch_exceptions=False, standalone_mode=False)
    assert not proof.exists()


def test_a_run_executes_its_own_plug_ins(write: Any, proof: Path, tmp_path: Path) -> None:
    ok("run", str(write("{mine}")), "--out", str(tmp_path / "run"), "--workers", "0", "--set", "rounds=1")
    assert proof.exists()
