"""Every benchmark runs: on tiny inputs, in a process of its own, with figures at the end."""

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
# Their smoke runs start several deployments, or models of some size, one after another: `make test-bench` runs them.
LONG = {"asynchronous", "billion", "diloco", "front_end", "overlap", "plan"}
NAMES = sorted(file.stem for file in FOLDER.glob("[a-z]*.py"))


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.long_bench if n in LONG else pytest.mark.docs) for n in NAMES]
)
def test_a_benchmark_runs_and_prints_its_figures(name: str, tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    command = [sys.executable, str(FOLDER / f"{name}.py"), "--smoke", "--json", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert sum(line.startswith("figure ") for line in done.stdout.splitlines()) >= 1
    assert out.is_file()


@pytest.mark.docs
def test_the_readme_has_the_figures_of_the_store() -> None:
    sys.path.insert(0, str(FOLDER))
    try:
        import _page
    finally:
        sys.path.pop(0)
    import json

    store = json.loads(_page.STORE.read_text(encoding="utf-8"))
    assert _page.PAGE.read_text(encoding="utf-8") == _page.page(store), "run 'make bench', or _page.py with a name"
    readme = _page.README.read_text(encoding="utf-8")
    assert _page.into_readme(readme, store) == readme
