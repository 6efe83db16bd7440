"""docs/security.md: every module and every attack that it names exists."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")


def test_the_attacks_that_it_names_exist() -> None:
    named = set(re.findall(r"`(test_\w+\.py)`", PAGE))
    assert len(named) > 8
    assert {name for name in named if not (ROOT / "tests" / "redteam" / name).is_file()} == set()


def test_every_attack_of_the_red_team_is_named() -> None:
    files = {file.name for file in (ROOT / "tests" / "redteam").glob("test_*.py")}
    assert {name for name in files if name not in PAGE} == set()


def test_the_modules_that_it_names_exist() -> None:
    named = re.findall(r"`((?:deploy|privacy)/[\w/]+(?:\.py|/))`", PAGE)
    assert len(named) > 5
    assert [name for name in named if not (ROOT / "hansa" / name).exists()] == []
