"""Finders of personal details: the built-in ones, others by the name of their class, and the union of several.

``rules``            labels, titles and formats, in thirteen languages
``lists``            given names, family names and towns that occur in word lists
``model:FOLDER``     a Hugging Face token classifier, for example one that `hansa data train-finder` trained
``presidio``         Presidio's analyzer engine
``module:Class``     a class of your own: ``package.module:Class`` or ``path/to/file.py:Class``

A plus sign unites them: ``rules+lists+model:finder``. What one member finds is found.
"""

import importlib
import importlib.util
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from hansa.core.errors import DataError, UserError, did_you_mean, place
from hansa.data.deidentification.details import AGE_LIMIT
from hansa.data.deidentification.kinds import BUILT_IN, TYPES, kind_of
from hansa.data.deidentification.lists import Lists
from hansa.data.deidentification.relatives import relatives
from hansa.data.deidentification.repeats import repeated
from hansa.data.deidentification.rules import Finding, Rules
from hansa.data.deidentification.tagger import Tagger
from hansa.data.deidentification.view import cleaned, repaired

DEFAULT = "rules+lists"
OPTIONAL = ("RELATIVE",)  # types that are found only if a user asks for them
PRESIDIO = "presidio_analyzer:AnalyzerEngine"


@runtime_checkable
class Deidentifier(Protocol):
    """A finder of personal details."""

    def find(self, text: str, language: str) -> list[Finding]:
        """The personal details in a text of the given language."""


@dataclass(frozen=True)
class PresidioFinder:
    """A finder that calls an engine with Presidio's interface, ``analyze(text=, language=)``."""

    engine: Any

    def find(self, text: str, language: str) -> list[Finding]:
        """See `Deidentifier.find`."""
        results = self.engine.analyze(text=text, language=language)
        return [Finding(r.start, r.end, kind_of(r.entity_type)) for r in results]


@dataclass(frozen=True)
class CheckedFinder:
    """A finder from outside the package; its results are validated."""

    spec: str
    finder: Any

    def find(self, text: str, language: str) -> list[Finding]:
        """See `Deidentifier.find`; raises `DataError` if the finder fails, `UserError` if it returns something else."""
        try:
            given = self.finder.find(text, language)
        except UserError:  # it cannot be used at all, for example because its model cannot be loaded
            raise
        except Exception as error:  # its message may quote the text
            raise DataError(
                f"de-identifier '{self.spec}' failed on a text in language '{language}': {type(error).__name__} "
                f"({place(error)})"
            ) from None
        try:
            found = [Finding(*one) if isinstance(one, tuple) else one for one in given]
            inside = all(isinstance(f, Finding) and 0 <= f.start <= f.end <= len(text) for f in found)
        except TypeError:
            inside = False
        if not inside:
            raise UserError(
                f"de-identifier '{self.spec}': find(text, language) must return a list of (start, end, type) with "
                "offsets inside the text; correct the class"
            )
        return found


@dataclass(frozen=True)
class Union:
    """What at least one member finds, in a cleaned view of the text; a name found once is found everywhere.

    ``keep``: types that are left alone; ``also``: types of `OPTIONAL` that are looked for.
    """

    members: tuple[Deidentifier, ...]
    keep: frozenset[str] = frozenset()
    also: frozenset[str] = frozenset()

    def find(self, text: str, language: str) -> list[Finding]:
        """The personal details in a text."""
        return self.find_all([text], language)[0]

    def find_all(self, texts: list[str], language: str, together: bool = False) -> list[list[Finding]]:
        """The personal details in each text; ``together``: a name found in one text is looked for in all of them."""
        views = [cleaned(text) for text in texts]
        plain = [view.text.replace("\u00b4", "'") for view in views]
        found = self._found(plain, language)
        for n, mended in ((n, repaired(text)) for n, text in enumerate(plain)):
            if mended != plain[n]:
                found[n] = found[n] + self._found([mended], language)[0]
        names = [[plain[n][f.start : f.end] for f in found[n] if f.type == "NAME"] for n in range(len(texts))]
        if together:
            names = [[name for some in names for name in some]] * len(texts)
        made = []
        for view, here, known in zip(views, found, names, strict=True):
            here = here + repeated(view.text, known, language)
            if "RELATIVE" in self.also:
                here += relatives(view.text, language)
            wanted = (f for f in here if f.type not in self.keep and f.start < f.end)
            made.append(sorted({Finding(*view.back(f.start, f.end), f.type) for f in wanted}, key=_order))
        return made

    def _found(self, texts: list[str], language: str) -> list[list[Finding]]:
        by_member = [find_all(member, texts, language) for member in self.members]
        return [[f for one in by_member for f in one[n]] for n in range(len(texts))]


def _order(finding: Finding) -> tuple[int, int, str]:
    return finding.start, finding.end, finding.type


def find_all(finder: Deidentifier, texts: list[str], language: str) -> list[list[Finding]]:
    """The personal details in each text; a finder with a method ``find_all`` gets them all at once."""
    if isinstance(finder, Union | Tagger):
        return finder.find_all(texts, language)
    if isinstance(finder, CheckedFinder) and isinstance(finder.finder, Tagger):
        return finder.finder.find_all(texts, language)
    return [finder.find(text, language) for text in texts]


def load(spec: str, keep: Iterable[str] = (), also: Iterable[str] = (), age_limit: int = AGE_LIMIT) -> Union:
    """The finder that ``spec`` names, without the types in ``keep``; see the head of this module for what it may name.

    ``also``: types of `OPTIONAL` that are found, too. ``age_limit``: the finder ``rules`` finds ages above it. A class
    is instantiated without arguments. Raises `UserError` if it cannot be loaded or has no suitable method, or if a type
    is not known, not optional, or both in ``keep`` and ``also``.
    """
    left_alone, wanted = (frozenset(kind.strip().upper() for kind in some if kind.strip()) for some in (keep, also))
    for kind in sorted(left_alone - set(TYPES)):
        raise UserError(f"'{kind}' is not a type of personal details; {did_you_mean(kind, TYPES)}")
    for kind in sorted(wanted - set(OPTIONAL)):
        reason = "is found anyway" if kind in TYPES else "is not a type of personal details"
        raise UserError(f"'{kind}' {reason}; types that can be found also: {', '.join(OPTIONAL)}")
    for kind in sorted(wanted & left_alone):
        raise UserError(f"'{kind}' is to be left alone and to be found also; name it once")
    return Union(tuple(_member(one.strip(), age_limit) for one in spec.split("+")), left_alone, wanted)


def _member(spec: str, age_limit: int) -> Deidentifier:
    if spec == "rules":
        return Rules(age_limit)
    if spec == "lists":
        return Lists()
    if spec.startswith("model:"):
        return CheckedFinder(spec, Tagger(spec.removeprefix("model:")))
    module, colon, name = (PRESIDIO if spec == "presidio" else spec).rpartition(":")
    if not colon or not module or not name:
        raise UserError(
            f"de-identifier '{spec}' is neither 'rules' nor 'lists', 'presidio', 'model:FOLDER' or 'module:Class'; "
            f"{did_you_mean(spec, [*BUILT_IN, 'presidio'])}"
        )
    made = _instance(spec, module, name)
    if hasattr(made, "find"):
        return CheckedFinder(spec, made)
    if hasattr(made, "analyze"):
        return CheckedFinder(spec, PresidioFinder(made))
    raise UserError(
        f"de-identifier '{spec}' has neither find(text, language) nor analyze(text=, language=); add one of them"
    )


def _instance(spec: str, place: str, name: str) -> Any:
    try:
        module = _file_module(Path(place)) if place.endswith(".py") else importlib.import_module(place)
        return getattr(module, name)()
    except ImportError as error:
        hint = (
            "; pip install 'hansa[presidio]'" if place.startswith("presidio") else "; install it, or correct the name"
        )
        raise UserError(f"de-identifier '{spec}' cannot be imported ({error}){hint}") from None
    except AttributeError:
        raise UserError(
            f"de-identifier '{spec}': there is no '{name}' in {place}; name a class of that module"
        ) from None
    except Exception as error:
        first = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(
            f"de-identifier '{spec}' cannot be instantiated without arguments ({first}); correct the class"
        ) from None


def _file_module(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise ImportError(f"there is no file {path}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
