"""docs/scale.md: every output on the page is what the command above it prints, with the constants beside the page."""

import shlex
from pathlib import Path

import pytest

from tests.cli.test_cli import ok
from tests.docs.blocks import ROOT, blocks

PAGE = ROOT / "docs" / "scale.md"
CONSTANTS = ROOT / "docs" / "scale-constants.json"


@pytest.mark.docs
def test_the_outputs_are_those_of_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = blocks(PAGE)
    (tmp_path / "constants.json").write_text(CONSTANTS.read_text())
    compared = 0
    for at, block in enumerate(found):
        if block.title:
            (tmp_path / block.title).write_text(block.text)
        if block.language != "sh" or "--constants" not in block.text:
            continue
        [words] = block.commands
        printed = ok(*words[1:])
        shown = found[at + 1]
        assert shown.language == "text", shown.place
        assert _plain(printed) == _plain(shown.text), f"{block.place}: {shlex.join(words)} prints\n{printed}"
        compared += 1
    assert compared >= 4


def _plain(text: str) -> list[list[str]]:
    """Lines as words: the width of columns does not matter."""
    return [line.split() for line in text.splitlines() if line.strip()]
