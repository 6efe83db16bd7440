"""Plug-ins: files and installed packages that add methods and more; every mistake in them is one sentence."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from hansa.config.plugins import load_entry_points, load_plugins
from hansa.core.errors import ConfigError
from hansa.core.method import METHODS
from hansa.core.settings import Named

METHOD = """
from hansa.core.method import METHODS
from hansa.core.settings import Section
from hansa.methods.fedavg import fedavg

@METHODS.register("{name}")
class Mine(Section):
    number: int = {number}

    def build(self):
        return fedavg()
"""
SETTINGS = METHOD.replace('@METHODS.register("{name}")\n', "")


@pytest.fixture(autouse=True)
def _registries_as_before() -> Iterator[None]:
    before = dict(METHODS.entries)
    load_entry_points.cache_clear()
    yield
    METHODS.entries.clear()
    METHODS.entries.update(before)
    load_entry_points.cache_clear()


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, module: str, code: str, entry: str) -> None:
    """A package as pip would leave it: a module, and metadata with an entry point."""
    (folder / f"{module}.py").write_text(code)
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[hansa.methods]\n{entry}\n")
    monkeypatch.syspath_prepend(str(folder))


def test_a_module_of_an_installed_package_registers_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "outside_one", METHOD.format(name="outside-one", number=1), "x = outside_one")
    load_plugins([])
    assert METHODS.build(Named(name="outside-one")).name == "fedavg"


def test_a_settings_class_is_registered_under_the_entrys_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "outside_two", SETTINGS.format(number=1), "outside-two = outside_two:Mine")
    load_plugins([])
    assert METHODS.build(Named.model_validate({"name": "outside-two", "number": 3})).name == "fedavg"


def test_a_package_that_takes_a_known_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "outside_three", SETTINGS.format(number=1), "fedavg = outside_three:Mine")
    with pytest.raises(ConfigError, match=r"'fedavg' of package 'outside_three' .*is registered twice, by .*: rename"):
        load_plugins([])


def test_a_package_that_cannot_be_loaded_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "outside_four", "import no_such_module\n", "x = outside_four")
    with pytest.raises(ConfigError, match=r"plug-in 'x' of package 'outside_four' .*cannot be loaded.*uninstall"):
        load_plugins([])


def test_an_entry_that_is_neither_module_nor_settings_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "outside_five", "answer = 42\n", "x = outside_five:answer")
    with pytest.raises(ConfigError, match="it names a int, and must name a module or a settings class"):
        load_plugins([])


def test_two_plug_in_files_of_one_name_are_refused(tmp_path: Path) -> None:
    first, second, third = tmp_path / "first.py", tmp_path / "second.py", tmp_path / "third.py"
    first.write_text(METHOD.format(name="taken-twice", number=1))
    second.write_text(METHOD.format(name="taken-twice", number=2))
    third.write_text(METHOD.format(name="fedavg", number=3))
    load_plugins([str(first), str(first)])
    with pytest.raises(ConfigError, match=r"second\.py: method 'taken-twice' is registered twice, by .* rename one"):
        load_plugins([str(second)])
    with pytest.raises(ConfigError, match=r"third\.py: method 'fedavg' is registered twice"):
        load_plugins([str(third)])


def test_a_file_that_fails_is_one_sentence_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("\nraise KeyError('oops')\n")
    with pytest.raises(ConfigError, match=r"broken\.py cannot be run: KeyError: 'oops' \(broken\.py:2\); repair"):
        load_plugins([str(tmp_path / "broken.py")])
    with pytest.raises(ConfigError, match="there is no such Python file"):
        load_plugins([str(tmp_path / "absent.py")])


def test_a_method_whose_slots_contradict_each_other_is_refused(tmp_path: Path) -> None:
    from hansa.config.file import parse
    from hansa.config.method import build_method

    code = """
from dataclasses import replace
from hansa.core.method import METHODS
from hansa.core.settings import Section
from hansa.methods.fedbuff import Buffered

@METHODS.register("{name}")
class Mine(Section):
    def build(self):
        return replace({base}, {slots})
"""
    worldlm = 'METHODS.entries["worldlm"]().build()'
    fedavg = 'METHODS.entries["fedavg"]().build()'
    (tmp_path / "a.py").write_text(code.format(name="odd-tree", base=worldlm, slots="participation=Buffered(2)"))
    (tmp_path / "b.py").write_text(code.format(name="odd-slot", base=fedavg, slots="aggregator=object()"))
    load_plugins([str(tmp_path / "a.py"), str(tmp_path / "b.py")])
    silos = {"silos": {"a": "a.jsonl", "b": "b.jsonl", "c": "c.jsonl"}}
    with pytest.raises(
        ConfigError, match=r"its participation Buffered does not work on trees, .*replace one of the two"
    ):
        build_method(parse(silos | {"method": "odd-tree"}))
    with pytest.raises(ConfigError, match="its aggregator object does not declare 'linear'; add it"):
        build_method(parse(silos | {"method": "odd-slot"}))
