"""The conventions of this repository, each held by a test: a convention without a test is a wish."""

import ast
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "hansa"
HELPERS = {"centroids", "centroid_noise"}  # of methods: no papers of their own
METHODS = sorted(p.stem for p in (PACKAGE / "methods").glob("*.py") if p.stem not in {"__init__", *HELPERS})
# Folders of tests that go across packages instead of mirroring one.
ACROSS = {"benchmarks", "device", "docs", "examples", "faults", "golden", "redteam"}


def sources(folder: str) -> list[Path]:
    return sorted(file for file in (ROOT / folder).rglob("*.py") if "__pycache__" not in file.parts)


def module_of(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imports() -> dict[str, set[str]]:
    """Module → the modules that it imports anywhere, also inside functions and under TYPE_CHECKING."""
    files = {module_of(file): file for file in sources("hansa")}
    found: dict[str, set[str]] = defaultdict(set)
    for module, file in files.items():
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("hansa"):
                names = (f"{node.module}.{alias.name}" for alias in node.names)
                found[module] |= {name if name in files else node.module for name in names}
            elif isinstance(node, ast.Import):
                found[module] |= {alias.name for alias in node.names if alias.name in files}
        found[module].discard(module)
    return found


def test_no_module_imports_itself_by_way_of_others() -> None:
    graph = imports()
    done: set[str] = set()

    def walk(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, f"a cycle of imports: {' → '.join((*path[path.index(module) :], module))}"
        if module in done:
            return
        for other in sorted(graph[module]):
            walk(other, (*path, module))
        done.add(module)

    for module in sorted(graph):
        walk(module, ())


def test_the_core_and_the_methods_know_nothing_around_them() -> None:
    """`lint-imports` holds all layers (pyproject.toml); this names the two innermost rules."""
    for module, others in imports().items():
        package = module.split(".")[1] if "." in module else ""
        if package == "core":
            assert all(other.startswith("hansa.core") for other in others), (module, others)
        if package == "methods":
            assert all(other.startswith(("hansa.core", "hansa.methods")) for other in others), (module, others)


def test_files_fit_in_a_readers_head() -> None:
    for file in [*sources("hansa"), *sources("benchmarks"), *sources("examples")]:
        assert len(file.read_text(encoding="utf-8").splitlines()) <= 400, file


def test_nothing_is_left_to_be_written() -> None:
    for file in [*sources("hansa"), *sources("benchmarks"), *sources("examples")]:
        assert not re.search(r"\bTODO\b|\bFIXME\b", file.read_text(encoding="utf-8")), file


def test_no_tutorial_names_a_path_of_the_machine_that_executed_it() -> None:
    for file in (ROOT / "docs" / "tutorials").glob("*.ipynb"):
        assert not re.search(
            r'"name": "stderr"|site-packages|(?<!\w)/(home|root)/', file.read_text(encoding="utf-8")
        ), file


def test_the_root_of_the_package_is_small() -> None:
    assert len(list(PACKAGE.glob("*.py"))) <= 10


def test_tests_mirror_the_package() -> None:
    packages = {folder.name for folder in PACKAGE.iterdir() if (folder / "__init__.py").is_file()}
    folders = {folder.name for folder in (ROOT / "tests").iterdir() if (folder / "__init__.py").is_file()}
    assert folders - ACROSS <= packages
    loose = {file.name for file in (ROOT / "tests").glob("test_*.py")}
    assert loose == {"test_conventions.py"}


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_test_a_row_and_a_citation(name: str) -> None:
    assert (ROOT / "tests" / "methods" / f"test_{name}.py").exists()
    assert f"methods/{name}.py" in (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
    text = (PACKAGE / "methods" / f"{name}.py").read_text(encoding="utf-8")
    assert re.search(r"\(20\d\d\)", text.split('"""')[1]), "it opens with its citation"


def test_paths_named_in_the_readme_and_docs_exist() -> None:
    for file in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        text = file.read_text(encoding="utf-8")
        for path in re.findall(r"`((?:hansa|tests|benchmarks|docs|examples)/[\w./-]+)`", text):
            assert (ROOT / path).exists(), f"{file.name}: {path}"


def test_paths_named_in_docstrings_exist() -> None:
    for file in sources("hansa"):
        text = file.read_text(encoding="utf-8")
        for path in re.findall(r"\b((?:hansa|tests|benchmarks|docs|examples)/[\w/-]+\.(?:py|md))\b", text):
            assert (ROOT / path).exists(), f"{file}: {path}"
        for name in re.findall(
            r"\b((?:core|client|config|methods|privacy|runs|deploy|data|models)/[\w/]+\.py)\b", text
        ):
            assert (PACKAGE / name).exists(), f"{file}: {name}"


def test_every_fault_of_the_table_has_its_tests() -> None:
    from tests.faults import CASES

    assert {*range(1, 11), 13, 14, 16, 21, 22, 23, 25} == set(CASES)
    for number, (_, tests) in CASES.items():
        for test in tests:
            file, name = test.split("::")
            assert f"def {name}(" in (ROOT / "tests" / file).read_text(encoding="utf-8"), f"{number}: {test}"


def test_the_page_of_settings_is_what_the_code_says() -> None:
    """`python -m hansa.config.reference > docs/federation-file.md` writes it anew.

    In a process of its own: other tests register methods and tasks, which would be on the page.
    """
    command = [sys.executable, "-m", "hansa.config.reference"]
    page = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert (ROOT / "docs" / "federation-file.md").read_text(encoding="utf-8").strip() == page.strip()
    for name in ("`micro_batch`", "### `fedadam`", "### `relation`", "`multiplier`"):
        assert name in page


def test_every_package_is_on_the_map() -> None:
    page = (ROOT / "docs" / "design.md").read_text(encoding="utf-8").partition("## A map")[2]
    named = set(re.findall(r"^\| `(\w+)/?` ", page, re.M))
    packages = {folder.parent.name for folder in PACKAGE.glob("*/__init__.py")}
    modules = {file.stem for file in PACKAGE.glob("*.py") if not file.stem.startswith("_")}
    assert packages | modules == named


def loaded_by(code: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after running some code."""
    command = [sys.executable, "-c", f"import sys\n{code}\nprint(*sys.modules, file=sys.stderr)"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(done.stderr.split())


def test_importing_hansa_is_cheap_and_brings_no_experiments() -> None:
    loaded = loaded_by("import hansa")
    assert not {"torch", "transformers", "pydantic"} & loaded
    assert not any(name.startswith("hansa.experiments") for name in loaded)


def test_no_library_module_imports_the_experiments() -> None:
    for module, others in imports().items():
        if not module.startswith(("hansa.experiments", "hansa.cli")):
            assert not any(other.startswith("hansa.experiments") for other in others), module


def test_help_needs_no_heavy_library() -> None:
    """`hansa --help` answers in 0.2 s because it loads none of these."""
    code = "from hansa.cli.main import app\nfrom typer.testing import CliRunner\nCliRunner().invoke(app, ['--help'])"
    assert not {"torch", "transformers", "numpy", "pydantic", "pyarrow"} & loaded_by(code)


def test_all_is_exact() -> None:
    import hansa

    assert sorted(hansa.__all__) == sorted(set(hansa.__all__))
    assert all(hasattr(hansa, name) for name in hansa.__all__)
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", hansa.__version__)
    stub = (PACKAGE / "__init__.pyi").read_text(encoding="utf-8")
    listed = ast.literal_eval(stub.partition("__all__ = ")[2])
    assert listed == hansa.__all__ == dir(hansa)
