"""The report: self-contained, escaped, right-to-left safe."""

import re
import sqlite3
from contextlib import closing
from pathlib import Path

from hansa.report import html
from hansa.report.charts import linear_ticks, log_ticks, short
from hansa.runs.run import run
from tests.conftest import Build


def test_the_page_is_self_contained_and_escaped(federation: Build, tmp_path: Path) -> None:
    settings = federation(sizes={"north": 40, "south": 40})
    names = dict(zip(("<script>", "عربي"), settings.silos.values(), strict=True))
    # A federation file cannot contain such a name; the report must not rely on that.
    outcome = run(settings, tmp_path / "run", workers=0)
    with sqlite3.connect(outcome.folder / "ledger.sqlite") as ledger:
        for new, old in zip(names, settings.silos, strict=True):
            for table, column in (("metrics", "grp"), ("traffic", "node")):
                ledger.execute(f"update {table} set {column}=? where {column}=?", (new, old))
    page = html.write([("run", outcome.folder)], outcome.folder / "report.html").read_text(encoding="utf-8")
    assert page.count("<script") == 1, "the page's own, which enlarges charts"
    assert page.index("<script>") > page.index("</footer>")
    assert "&lt;script&gt;" in page
    assert "عربي" in page
    assert 'dir="auto"' in page
    assert not re.search(r'(src|href)="', page), "the page loads nothing"
    assert "http://" not in page
    assert "https://" not in page
    for part in (
        "Learning curves",
        "Data and sampling",
        "What left the silos",
        "Time",
        "Configuration",
        "prefers-color-scheme",
    ):
        assert part in page


def test_runs_of_an_earlier_version_have_a_report_too(federation: Build, tmp_path: Path) -> None:
    folder = run(federation(rounds=1), tmp_path / "run", workers=0).folder
    with closing(sqlite3.connect(folder / "ledger.sqlite")) as ledger:
        ledger.executescript("alter table traffic drop column offered; drop table attention")
    assert "north" in html.write([("run", folder)], folder / "report.html").read_text(encoding="utf-8")


def test_numbers_and_ticks() -> None:
    assert [short(v) for v in (0, 12000, 264.3, 5.634, 0.0021, 3_400_000)] == [
        "0",
        "12,000",
        "264",
        "5.63",
        "0.0021",
        "3.4M",
    ]
    assert linear_ticks(0.1, 0.9) == [0.0, 0.2, 0.4, 0.6000000000000001, 0.8, 1.0]
    assert log_ticks(3, 4000)[0] >= 3
    assert all(a < b for a, b in zip(log_ticks(1, 9e5), log_ticks(1, 9e5)[1:], strict=False))
