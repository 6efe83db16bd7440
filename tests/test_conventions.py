"""A convention without a test is a wish."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
METHODS = sorted(p.stem for p in (ROOT / "hansa" / "methods").glob("*.py") if p.stem != "__init__")


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_paper_test_a_row_and_a_citation(name):
    assert (ROOT / "tests" / "papers" / f"test_{name}.py").exists()
    assert f"methods/{name}.py" in (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
    text = (ROOT / "hansa" / "methods" / f"{name}.py").read_text(encoding="utf-8")
    assert re.search(r"\(20\d\d\)", text.split('"""')[1]), "it opens with its citation"


def test_paths_named_in_the_readme_and_docs_exist():
    for file in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for path in re.findall(r"`((?:hansa|tests|benchmarks|docs)/[\w./-]+)`", file.read_text(encoding="utf-8")):
            assert (ROOT / path).exists(), f"{file.name}: {path}"


def test_the_readmes_federation_file_is_valid():
    import yaml

    from hansa.config.file import parse

    [block] = re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.S)
    assert parse(yaml.safe_load(block)).rounds > 0
    assert len(block.strip().splitlines()) <= 12


def test_files_fit_in_a_readers_head():
    for file in (ROOT / "hansa").rglob("*.py"):
        assert len(file.read_text(encoding="utf-8").splitlines()) <= 500, file


def test_every_fault_of_the_table_has_its_tests():
    from tests.faults import CASES

    assert {*range(1, 11), 13, 14, 16, 21, 22, 23, 25} == set(CASES)
    for number, (_, tests) in CASES.items():
        for test in tests:
            file, name = test.split("::")
            assert f"def {name}(" in (ROOT / "tests" / file).read_text(encoding="utf-8"), f"{number}: {test}"


def test_the_page_of_settings_is_what_the_code_says():
    """`python -m hansa.config.reference > docs/federation-file.md` writes it anew."""
    from hansa.config import reference

    assert (ROOT / "docs" / "federation-file.md").read_text(encoding="utf-8") == reference.page()
    for name in ("`micro_batch`", "### `fedadam`", "### `relation`", "`multiplier`"):
        assert name in reference.page()


def test_every_module_is_on_the_map():
    page = (ROOT / "docs" / "design.md").read_text(encoding="utf-8").partition("## A map")[2]
    named = set(re.findall(r"`(\w+/?)`", page))
    modules = {file.stem for file in (ROOT / "hansa").glob("*.py") if not file.stem.startswith("_")}
    folders = {f"{folder.parent.name}/" for folder in (ROOT / "hansa").glob("*/__init__.py")} - {"templates/"}
    assert modules | folders == named
