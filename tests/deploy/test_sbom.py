"""`make sbom`: the bill of materials lists what is installed, and a licence that is not allowed fails."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RULES = """
[tool.hansa.licences]
allow = [{allow}]
"""


def sbom(out: Path, *more: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(ROOT / "packaging" / "sbom.py"), "--out", str(out), *more]
    return subprocess.run(command, capture_output=True, text=True)


def test_the_bill_of_materials_of_this_environment(tmp_path: Path) -> None:
    done = sbom(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all licences allowed" in done.stdout
    bill = json.loads((tmp_path / "sbom.json").read_text())
    assert bill["bomFormat"] == "CycloneDX"
    parts = {one["name"].lower() for one in bill["components"]}
    assert {"torch", "transformers", "cryptography", "pydantic"} <= parts
    assert bill["metadata"]["component"]["name"] == "hansa"
    listed = {one["name"].lower() for one in json.loads((tmp_path / "licences.json").read_text())}
    assert {"torch", "cryptography"} <= listed


def test_a_licence_that_is_not_allowed_fails_in_one_sentence(tmp_path: Path) -> None:
    """The negative control: the same environment under a list without Apache."""
    rules = tmp_path / "rules.toml"
    rules.write_text(RULES.format(allow='"MIT", "MIT License"'))
    done = sbom(tmp_path / "build", "--pyproject", str(rules))
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith("failed: ")
    assert "which is not allowed" in line
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("licence", "allowed"),
    [
        ("MIT", True),
        ("MIT AND Zlib", False),
        ("MIT OR GPL-3.0-only", True),
        ("GPL-3.0-only", False),
        ("(MIT OR GPL-3.0-only) AND BSD-2-Clause", True),
        ("MIT License; GNU General Public License (GPL)", False),
        ("UNKNOWN", False),
        ("", False),
    ],
)
def test_expressions(licence: str, allowed: bool) -> None:
    import runpy

    script = runpy.run_path(str(ROOT / "packaging" / "sbom.py"))
    packages = [{"name": "thing", "version": "1", "license": licence}]
    found = script["refused"](packages, {"MIT", "MIT License", "BSD-2-Clause"}, {})
    assert (not found) is allowed
    assert not script["refused"](packages, {"MIT"}, {"thing": "MIT"}), "a person has looked"
