"""Run every benchmark, and write their figures to docs/benchmarks.md and into the README: `make bench`.

    python benchmarks/_page.py [NAME …]       without names: all of them

Figures of benchmarks that are not run stay as they are, with the commit and date they were measured at.
"""

import json
import platform
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE, README = ROOT / "docs" / "benchmarks.md", ROOT / "README.md"
STORE = ROOT / "docs" / "benchmarks.json"
MARKS = "<!-- figures from docs/benchmarks.json: make bench -->", "<!-- end of figures -->"


def names() -> list[str]:
    """Every benchmark."""
    return sorted(file.stem for file in Path(__file__).parent.glob("[a-z]*.py"))


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def machine() -> str:
    models = [line.split(":")[1].strip() for line in cpu_lines() if line.startswith("model name")]
    return f"{len(models) or 1} × {models[0] if models else platform.processor()}, Python {platform.python_version()}"


def cpu_lines() -> list[str]:
    file = Path("/proc/cpuinfo")
    return file.read_text().splitlines() if file.is_file() else []


def measure(name: str) -> dict[str, Any]:
    """Run a benchmark in a process of its own; return its figures, with commit, machine and date."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "figures.json"
        subprocess.run([sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), "--json", str(out)], check=False)
        figures = json.loads(out.read_text())
    changed = "+" if git("status", "--porcelain", "--", "hansa", "benchmarks") else ""
    at = datetime.now(UTC).strftime("%Y-%m-%d")
    return {
        "figures": figures,
        "commit": git("rev-parse", "--short", "HEAD") + changed,
        "date": at,
        "machine": machine(),
    }


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def row(figure: dict[str, Any]) -> str:
    sign = {"<=": "≤", ">=": "≥"}[figure["operator"]]
    unit = {"ratio": "×", "percent": " %"}.get(figure["unit"], f" {figure['unit']}")
    met = figure["value"] <= figure["target"] if figure["operator"] == "<=" else figure["value"] >= figure["target"]
    missed = "" if met else " (missed)"
    return f"| {figure['what']} | {number(figure['value'])}{unit}{missed} | {sign} {figure['target']:g}{unit} |"


def page(store: dict[str, Any]) -> str:
    """docs/benchmarks.md."""
    parts = [
        "# Benchmarks\n",
        "Written by `make bench`; do not edit. Each figure is measured against its peer in one run; a `+` behind a "
        "commit means uncommitted changes.\n",
    ]
    for name, one in sorted(store.items()):
        about = f"`python benchmarks/{name}.py` at commit {one['commit']}, {one['date']}, {one['machine']}."
        table = ["| what | measured | target |", "|---|---:|---:|", *map(row, one["figures"])]
        parts.append("\n".join([f"## {name}\n", about, "", *table, ""]))
    return "\n".join(parts)


def table(store: dict[str, Any]) -> str:
    """The README's table: the first figure of every benchmark."""
    rows = [row(one["figures"][0]) for _, one in sorted(store.items())]
    return "\n".join([MARKS[0], "| what | measured | target |", "|---|---:|---:|", *rows, MARKS[1]])


def into_readme(text: str, store: dict[str, Any]) -> str:
    before, _, rest = text.partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    return before + table(store) + after


def main() -> None:
    store: dict[str, Any] = json.loads(STORE.read_text()) if STORE.is_file() else {}
    for name in sys.argv[1:] or names():
        store[name] = measure(name)
        STORE.write_text(json.dumps(store, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    PAGE.write_text(page(store), encoding="utf-8")
    README.write_text(into_readme(README.read_text(encoding="utf-8"), store), encoding="utf-8")


if __name__ == "__main__":
    main()
