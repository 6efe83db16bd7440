"""Every code block of README and docs is executed, read by the code that it is for, or marked as output."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from hansa.config.file import parse
from hansa.privacy.policy.rules import Policy
from hansa.runs.few_shot import read_tasks
from tests.docs.blocks import ELSEWHERE, PAGES, ROOT, Block, blocks, elsewhere

ALL = [block for page in PAGES for block in blocks(page)]
DEPLOY = ROOT / "docs" / "deploy.md"  # executed by tests/faults/test_walk.py
GENERATED = {"command-line.md"}  # its blocks show the usage of commands
SECONDS = 600.0  # for a page, on a machine with other work


def executable(block: Block) -> bool:
    if block.page == DEPLOY:
        return False
    return (block.language == "python") or (
        block.language == "sh" and any(words[0] == "hansa" and not elsewhere(words) for words in block.commands)
    )


EXECUTED = sorted({block.page for block in ALL if executable(block)})


@pytest.mark.docs
@pytest.mark.parametrize("page", EXECUTED, ids=lambda page: page.stem)
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TOKENIZERS_PARALLELISM": "false"}
    command = [sys.executable, "-m", "tests.docs.run_page", str(page)]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"


def test_every_block_says_what_it_is() -> None:
    known = {"python", "sh", "yaml", "text"}
    wrong = [b.place for b in ALL if b.language not in known and b.page.name not in GENERATED]
    assert wrong == [], "mark output as ```text, and code as ```python, ```sh or ```yaml"
    for block in ALL:
        if block.language == "text":
            found = re.findall(r"^(?:\$ )?(hansa [a-z]+ .*|import hansa.*)$", block.text, re.M)
            assert not found, f"{block.place} is marked as output, but contains a command: {found[0]}"


def test_every_command_is_executed() -> None:
    """By the driver of pages, by the test that `ELSEWHERE` names, or by a target of the Makefile."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for block in ALL:
        if block.language != "sh" or (block.page == DEPLOY and block.title):
            continue
        for words in block.commands:
            assert elsewhere(words) or block.page != DEPLOY, f"{block.place}: {words[:2]} is not executed by any test"
            assert words[0] in ("hansa", "make"), f"{block.place}: {words[0]} is not executed by any test"
            if words[0] == "make":
                assert f"\n{words[1]}: $(READY)" in makefile, f"{block.place}: no target {words[1]}"


def test_what_is_executed_elsewhere_is() -> None:
    lines = [" ".join(words) for block in ALL if block.language == "sh" for words in block.commands]
    for beginning, test in ELSEWHERE.items():
        file, _, name = test.partition("::")
        assert f"def {name}(" in (ROOT / "tests" / file).read_text(encoding="utf-8"), test
        assert any(line.startswith(beginning) for line in lines), f"no page has '{beginning}'"


@pytest.mark.parametrize("block", [b for b in ALL if b.language == "yaml"], ids=lambda block: block.place)
def test_yaml_is_valid(block: Block, tmp_path: Path) -> None:
    raw = yaml.safe_load(block.text)
    if "rules" in raw:
        (tmp_path / "jurisdiction.yaml").write_text("rules: {all: {federations: any, methods: any}}\n")
        (tmp_path / "policy.yaml").write_text(block.text, encoding="utf-8")
        assert Policy.read(tmp_path / "policy.yaml").rules
        return
    if all(isinstance(one, dict) and "data" in one for one in raw.values()):
        (tmp_path / "few-shot.yaml").write_text(block.text, encoding="utf-8")
        assert read_tasks(tmp_path / "few-shot.yaml").keys() == raw.keys()
        return
    whole = {"name": "page", "silos": {"lyon": {"train": "lyon.jsonl"}}}
    # Lines that stand for one another have the same key: each is read by itself.
    alternatives = [raw] if "silos" in raw else [yaml.safe_load(part) for part in re.split(r"\n(?=\w)", block.text)]
    for settings in alternatives:
        assert parse(whole | {"task": "mlm", "model": "tiny"} | {k: v for k, v in settings.items() if k != "plugins"})


def test_a_wrong_setting_in_a_block_would_be_found(tmp_path: Path) -> None:
    """Negative control."""
    block = Block(DEPLOY, 1, "yaml", "", "uplaod: int8\n")
    with pytest.raises(Exception, match="uplaod"):
        test_yaml_is_valid(block, tmp_path)
