"""The fenced code blocks of README and docs, and what must hold of each kind.

    ```python                   executed, page by page in the order of the page (tests/docs/run_page.py)
    ```python title="FILE"      written to FILE, which a later block of the page uses
    ```sh                       executed in the same way, or listed in `ELSEWHERE` with the test that executes it
    ```yaml                     read as a federation file, a policy, or settings of a federation file
    ```yaml title="FILE"        the same, and written to FILE
    ```text                     output, or something else that is not executed

docs/deploy.md has blocks with the name of a user as their title; tests/faults/test_walk.py executes them. The pages of
docs/tutorials are written from notebooks, which tests/docs/test_tutorials.py executes.
"""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
OPENING = re.compile(r'^```(?P<language>\S*)(?: title="(?P<title>[^"]+)")?(?P<rest>.*)$')

# The beginning of a command → the test that executes it, where the page's own driver does not.
ELSEWHERE = {
    "hansa audit attack --kind embedding-inversion": "attacks/test_attacks.py::test_inversion_recovers_centroids_of_few_texts",
}


@dataclass(frozen=True)
class Block:
    """A code block: its page, the line it begins at, its language, its title and its text."""

    page: Path
    line: int
    language: str
    title: str
    text: str

    @property
    def place(self) -> str:
        """Page and line, for messages."""
        return f"{self.page.relative_to(ROOT)}, line {self.line}"

    @property
    def commands(self) -> list[list[str]]:
        """The commands of a shell block, without comments, as lists of words."""
        return [words for line in self.text.splitlines() if (words := shlex.split(line, comments=True))]


def blocks(page: Path) -> list[Block]:
    """The blocks of a page, in order; a fence with anything but a title behind its language is an error."""
    found: list[Block] = []
    opening: tuple[int, re.Match[str]] | None = None
    lines: list[str] = []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if not line.startswith("```"):
            lines.append(line)
        elif opening is None:
            match = OPENING.match(line)
            assert match and not match["rest"], f"{page.name}, line {number}: {line} is not understood"
            opening, lines = (number, match), []
        else:
            begin, match = opening
            found.append(Block(page, begin, match["language"], match["title"] or "", "\n".join(lines) + "\n"))
            opening = None
    assert opening is None, f"{page.name}: a code block is not closed"
    return found


def elsewhere(words: list[str]) -> str:
    """The test that executes a command; empty if the page's driver does."""
    line = shlex.join(words)
    return next((test for beginning, test in ELSEWHERE.items() if line.startswith(beginning)), "")
