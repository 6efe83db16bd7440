"""The documentation as a site: no warning, nothing from the network, every public name."""

import os
import re
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

import hansa

ROOT = Path(__file__).parents[2]
SCRIPT = [sys.executable, str(ROOT / "packaging" / "pages.py"), "--check"]
LOADED = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*?\bsrc=["'](?:https?:)?//|<link\b(?=[^>]*rel=["'](?:stylesheet|preconnect|icon)["'])[^>]*href=["'](?:https?:)?//"""
)
NOT_OBJECTS = {"__version__", "callbacks", "methods"}
pytestmark = pytest.mark.docs


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stderr
    return folder


def documented(site: Path) -> set[str]:
    """The names in the reference, from the inventory that the site offers to other sites."""
    raw = (site / "objects.inv").read_bytes()
    lines = zlib.decompress(raw.split(b"\n", 4)[4]).decode().splitlines()
    return {line.split(" ", 1)[0] for line in lines}


def public() -> dict[str, str]:
    """Every public class and function of `hansa` and `hansa.callbacks` → where it is defined."""
    found = {f"hansa.{name}": getattr(hansa, name) for name in hansa.__all__ if name not in NOT_OBJECTS}
    found |= {f"hansa.callbacks.{name}": getattr(hansa.callbacks, name) for name in hansa.callbacks.__all__}
    kinds = {name: one if hasattr(one, "__qualname__") else type(one) for name, one in found.items()}
    return {name: f"{one.__module__}.{one.__qualname__}" for name, one in kinds.items()}


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    assert len(public()) > 20
    assert {name for name, home in public().items() if home not in documented(site)} == set()
    page = (site / "python.html").read_text(encoding="utf-8")
    assert [name for name in hansa.methods.__all__ if f"hansa.methods.{name}<" not in page] == []


def test_no_page_loads_anything_from_the_network(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        found = LOADED.search(page.read_text(encoding="utf-8"))
        assert not found, f"{page.name}: {found and found[0]}"
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(?:https?:)?//", style.read_text(encoding="utf-8")), style


def test_every_page_is_in_the_navigation(site: Path) -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = [file.relative_to(ROOT / "docs") for file in (ROOT / "docs").rglob("*.md")]
    assert [str(page) for page in pages if str(page) not in text] == []


def test_generated_pages_are_what_the_code_says() -> None:
    done = subprocess.run(SCRIPT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


def test_an_edited_page_is_noticed(tmp_path: Path) -> None:
    """Negative control."""
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    with (tmp_path / "docs" / "command-line.md").open("a", encoding="utf-8") as page:
        page.write("an edit\n")
    command = [*SCRIPT, "--docs", str(tmp_path / "docs")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1
    assert "command-line.md is not what the code says; run 'make pages'" in done.stderr
