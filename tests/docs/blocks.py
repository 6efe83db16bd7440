"""The fenced code blocks of README and docs, and what must hold of each kind.

    ```python                   executed, page by page in the order of the page (tests/docs/run_page.py)
    ```python title="FILE"      written to FILE, which a later block of the page uses
    ```sh                       executed in the same way, or listed in `ELSEWHERE` with the test that executes it
    ```yaml                     read as a federation file, a part of one, a policy or a few-shot file
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
    "hansa join lyon --data data/fr.jsonl --at-once": (
        "faults/test_queue.py::test_two_studies_at_once_with_a_kill_in_the_middle"
    ),
    "hansa evaluate runs/medical-small --silo all": "cli/test_cli.py::test_run_then_everything_one_does_with_a_run",
    "hansa survey federation.yaml --kit": ("deploy/test_survey.py::test_the_commands_of_the_page_survey_two_agents"),
    "hansa approve federation.yaml --kit lyon --survey": (
        "deploy/test_survey.py::test_the_commands_of_the_page_survey_two_agents"
    ),
    "hansa plan hospitals.yaml --constants": "docs/test_scale_page.py::test_the_outputs_are_those_of_the_command",
    "hansa retrain": "cli/test_cli.py::test_retrain_repeats_a_run_without_a_silo",
    "hansa dashboard user add": "faults/test_pages.py::test_pages_of_a_running_federation",
    "hansa dashboard runs": "faults/test_pages.py::test_pages_of_a_running_federation",
    "hansa silo-page": "faults/test_pages.py::test_pages_of_a_running_federation",
    "hansa status lyon": "faults/test_pages.py::test_pages_of_a_running_federation",
    "hansa serve federation.yaml --kit kit --out runs/clinics --health": (
        "faults/test_pages.py::test_pages_of_a_running_federation"
    ),
    **dict.fromkeys(
        ("hansa serve --queue", "hansa submit", "hansa runs runs", "hansa stop"),
        "faults/test_queue.py::test_two_runs_after_another_with_a_kill_between_them",
    ),
    "hansa doctor": "deploy/test_doctor.py::test_the_command_line",
    "hansa leave": "faults/test_leave.py::test_a_silo_leaves_during_a_run",
    "hansa check --policy": "privacy/policy/test_preview.py::test_check_previews_the_decision",
    "hansa audit show": "privacy/policy/test_audit_log.py::test_the_command_line_verifies_and_shows",
    "hansa audit verify": "privacy/policy/test_audit_log.py::test_the_command_line_verifies_and_shows",
    "hansa audit budget": "privacy/dp/test_budget.py::test_the_command_line_shows_the_budget",
    "hansa audit attack --kind crafted-model": "attacks/test_crafted.py::test_the_whole_table_and_its_reading",
    "hansa audit attack --kind canary": (
        "attacks/test_canary.py::test_repeated_canaries_are_remembered_and_noise_prevents_it"
    ),
    "hansa audit attack --kind backdoor": (
        "attacks/test_backdoor.py::test_a_boosted_backdoor_succeeds_against_the_mean_and_fails_against_robust_rules"
    ),
    "hansa audit price-table": ("experiments/test_privacy_price.py::test_rows_are_run_once_and_written_into_the_page"),
    "hansa audit price": "attacks/test_attacks.py::test_the_price_of_every_defence_in_one_table_and_one_curve",
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
            assert match is not None
            assert not match["rest"], f"{page.name}, line {number}: {line} is not understood"
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
