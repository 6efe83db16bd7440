"""A silo's answers to a survey: figures with a floor, and keyed sketches (hansa.data.survey, hansa.privacy.survey).

Figures count the rows of all splits. The floor is the larger one of the request's and the federation file's. Names of
labels leave where task.labels lists them; others are counted as one, unless the task lets silos report theirs.
"""

import re
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import cast

from hansa.client.runtime import Runtime
from hansa.config.nodes import Holder
from hansa.core.messages import Failure
from hansa.core.survey_messages import (
    OfferSurveyKey,
    SealSurveyKey,
    SiloFigures,
    SiloSketches,
    SurveyReply,
    SurveyReport,
    SurveyRequest,
    TakeSurvey,
)
from hansa.data.importing.sentences import detected_language
from hansa.data.rows import Problems, Row
from hansa.data.source import Source
from hansa.data.splits import rows
from hansa.data.survey.figures import FlooredCounts, length_bin, rounded
from hansa.data.survey.sketches import DocumentSketches, packed, vocabulary_sketch
from hansa.data.units import UnitCounts
from hansa.privacy.secure_aggregation.protocol import Refused
from hansa.privacy.survey.key import SurveyKey, SurveySigner
from hansa.tasks.base import LabelledTask, discovery_of, texts_of

WORD = re.compile(r"\w+")
SPLITS = ("train", "valid", "test")
OTHER_LABELS, UNKNOWN = "(not listed)", "(unknown)"


class SurveyedSilo:
    """Answers the requests of a survey from a silo's rows; ``home``: the silo's folder in this run."""

    def __init__(self, name: str, holder: Holder, runtime: Runtime, home: Path) -> None:
        self._name, self._holder, self._runtime = name, holder, runtime
        signer = cast(SurveySigner | None, runtime.signer)
        seed = None if runtime.deployed else runtime.federation.seed
        self._key = SurveyKey(name, runtime.federation.name, home, signer, seed)

    def answer(self, request: SurveyRequest) -> SurveyReply | Failure:
        """The silo's part of the agreement on a key, or its figures; a `Failure` if it refuses."""
        try:
            match request:
                case OfferSurveyKey():
                    return self._key.offer(request)
                case SealSurveyKey():
                    return self._key.seal(request)
                case TakeSurvey():
                    return self._take(request)
        except Refused as why:
            return Failure(f"it refuses: {why}")

    def _take(self, request: TakeSurvey) -> SurveyReport:
        settings = self._runtime.federation.surveyed
        key = self._key.open(request) if request.sealed else None
        count = _Count(self._runtime, key, request.labels and self._runtime.task.needs_labels)
        for split in SPLITS:
            for row, source in self._rows(split):
                count.add(split, row, source, self._unit(row))
        floor = max(request.floor, settings.floor)
        figures, labels = count.figures(floor)
        shares = {self._name: labels} if labels else {}
        if key is None or not figures.rows:
            return SurveyReport({self._name: figures}, shares)
        return SurveyReport({self._name: figures}, shares, {self._name: count.sketches(floor, settings.max_documents)})

    def _rows(self, split: str) -> Iterator[tuple[Row, Source]]:
        data, problems = self._runtime.federation.data, Problems()
        for source in self._holder.sources:
            for row in rows(source, split, data, problems):
                yield row, source

    def _unit(self, row: Row) -> Hashable | None:
        """The patient or document that a row belongs to, where that is what the settings protect."""
        named = self._runtime.unit_field(self._name)
        return str(row.get(named)) if named else None


class _Count:
    """The counts of one silo; ``key``: of the sketches, None: no sketches are made."""

    def __init__(self, runtime: Runtime, key: bytes | None, labels: bool) -> None:
        self._task, self._key, self._labelled = runtime.task, key, labels
        self._texts_in = texts_of(runtime.task)
        listed = cast(LabelledTask, runtime.task).labels if labels else ()
        self._listed = frozenset(listed)
        self._any_label = not listed and (not runtime.deployed or discovery_of(runtime.task).allowed)
        self.splits, self.languages, self.labels = FlooredCounts[str](), FlooredCounts[str](), FlooredCounts[str]()
        self.words, self.characters = FlooredCounts[int](), FlooredCounts[int]()
        self._rows = FlooredCounts[str]()
        self._vocabulary, self._documents = UnitCounts(), DocumentSketches(key or b"")

    def add(self, split: str, row: Row, source: Source, unit: Hashable | None) -> None:
        """Count a row."""
        text = "\n".join(self._texts_in(row, source))
        found = WORD.findall(text.casefold())
        tag = row.get("lang") or row.get("language") or source.language
        language = detected_language(text) or str(tag or UNKNOWN)
        self._rows.add(["rows"], unit)
        self.splits.add([split], unit)
        self.words.add([length_bin(len(found))], unit)
        self.characters.add([length_bin(len(text))], unit)
        self.languages.add([language], unit)
        self._vocabulary.add(found, unit)
        if self._labelled:
            names = set(cast(LabelledTask, self._task).labels_in(row, source))
            known = names if self._any_label else names & self._listed
            self.labels.add(sorted(known) + [OTHER_LABELS] * (known != names), unit)
        if self._key is not None:
            self._documents.add(text, str(tag or language))

    def figures(self, floor: int) -> tuple[SiloFigures, dict[str, int]]:
        """The figures that leave, and the labels; a silo with too few rows releases nothing but that."""
        total = self._rows.released(floor)[0].get("rows", 0)
        if not total:
            return SiloFigures(withheld=("rows",)), {}
        parts = {
            name: getattr(self, name).released(floor)
            for name in ("splits", "words", "characters", "languages", "labels")
        }
        vocabulary = rounded(len(self._vocabulary.at_least(floor)), floor)
        withheld = tuple(name for name, (_, some) in parts.items() if some)
        labels = parts.pop("labels")[0]
        kept = {name: found for name, (found, _) in parts.items()}
        return SiloFigures(total, **kept, vocabulary=vocabulary, withheld=withheld), labels

    def sketches(self, floor: int, most: int) -> SiloSketches:
        """The sketches that leave: of common words, and of documents if there are enough."""
        assert self._key is not None
        words = vocabulary_sketch(self._key, list(self._vocabulary.at_least(floor)))
        made, documents = self._documents.sketches(most)
        made = made[: rounded(len(made), floor)]  # their number is a figure like the others
        if not len(made):
            return SiloSketches(packed(words))
        return SiloSketches(packed(words), packed(made), len(made), rounded(documents, floor))
