"""How `hansa check` reads data: annotation as a run reads it, and the language of texts."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import cast

from hansa.config.federation import Federation
from hansa.config.tree import federated_vocabulary, holders
from hansa.core.errors import UserError
from hansa.data.chunks import all_cores, chunks
from hansa.data.examples import Encoded, Unusable, note_sample
from hansa.data.rows import Problems, Row
from hansa.data.source import Source
from hansa.data.splits import rows
from hansa.data.units import UnitCounts
from hansa.models import tokenizer
from hansa.tasks.base import (
    ANY_LENGTH,
    TASKS,
    DerivingTask,
    GenerationTask,
    LabelledTask,
    Task,
    Vocabulary,
    discovery_of,
)

DETECTED = 200  # texts of a source whose language is detected
MAX_FOREIGN = 0.1  # the share of them in another language above which there is a warning


@dataclass
class ForeignTexts:
    """Texts that are not in the expected language: counts by detected language, and the place of the first text."""

    languages: Counter[str] = field(default_factory=Counter)
    first: str = ""

    def add(self, some: list[Row], text: str, language: str) -> None:
        """Detect the language of the field ``text`` of some rows; count those that are not in ``language``."""
        for row, detected in other_languages(some, text, language):
            self.languages[detected] += 1
            self.first = self.first or row.place


@dataclass(frozen=True)
class SourceReading:
    """What was found in a source: samples by split, and problems as a run would report them.

    Where rows have no annotation, a row counts as one sample: into how many it is cut depends on the vocabulary.
    """

    counts: dict[str, int]
    texts: int  # training rows that can be read
    problems: list[str]

    @property
    def count(self) -> int:
        """The number of training samples."""
        return self.counts["train"]


@dataclass(frozen=True)
class SourceReader:
    """Reads the sources of a federation as its silos would."""

    federation: Federation

    @cached_property
    def task(self) -> Task:
        """The task of the federation."""
        return TASKS.build(self.federation.task)

    @property
    def _has_annotation(self) -> bool:
        """Whether rows have labels or target texts, which can be wrong."""
        return self.task.needs_labels or isinstance(self.task, GenerationTask)

    def read(self, source: Source, unit: str = "") -> SourceReading:
        """Read a source; raises `DataError` if more rows than `data.max_bad_rows` allows cannot be used.

        ``unit``: the field that names the patient or document of a training row, where privacy needs it.
        """
        counts, texts, found = {"train": 0, "valid": 0, "test": 0}, 0, list[str]()
        for split in counts:
            problems, train = Problems(), split == "train"
            for chunk in chunks(source, split, self.federation.data, unit if train else ""):
                problems.add(chunk.problems)
                usable = self._examine(chunk.rows, source, problems) if self._has_annotation else len(chunk.rows)
                counts[split] += usable
                texts += len(chunk.rows) * train
            problems.check(self.federation.data.max_bad_rows, source.files().get(split, source.train))
            found += [f"{split}: {line}" for line in problems.summary()]
        return SourceReading(counts, texts, found)

    def foreign(self, source: Source) -> dict[str, tuple[int, ForeignTexts]]:
        """By expected language: how many of the first training texts were looked at, and those in other languages."""
        sides = {source.text: source.language or ""}
        if isinstance(self.task, GenerationTask):
            sides[source.target] = source.target_language or ""
        sides = {text: language for text, language in sides.items() if language}
        some = list(islice(rows(source, "train", self.federation.data, Problems()), DETECTED)) if sides else []
        found = {}
        for text, language in sides.items():
            foreign = ForeignTexts()
            foreign.add(some, text, language)
            found[language] = (len(some), foreign)
        return found

    def _examine(self, some: list[Row], source: Source, problems: Problems) -> int:
        """How many samples some rows give; ``problems`` counts the rows and samples that cannot be used."""
        if not some:
            return 0
        with all_cores():
            if isinstance(self.task, DerivingTask):
                count, unusable = self.task.examine(some, source, self.vocabulary)
            else:
                samples = list(self.task.encode(some, source, self.vocabulary))
                unusable = [sample for sample in samples if isinstance(sample, Unusable)]
                count = len(samples) - len(unusable)
                problems.shortened += sum(sample.shortened for sample in samples if isinstance(sample, Encoded))
        for sample in unusable:
            note_sample(problems, sample)
        return count

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary of the run if it exists; otherwise bytes without a limit on the length of samples.

        A vocabulary that the silos will build is not known before the run, nor which samples will be too long.
        """
        settings, labels = self.federation.tokenizer, self.labels
        path = settings.path or self.federation.model.path
        if settings.kind == "bytes":
            return Vocabulary(tokenizer.byte_tokenizer(), self.federation.data.max_length, labels)
        if federated_vocabulary(self.federation) or not Path(str(path)).is_dir():
            return Vocabulary(tokenizer.byte_tokenizer(), ANY_LENGTH, labels)
        return Vocabulary(tokenizer.load(str(path)), self.federation.data.max_length, labels)

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """The classes of the model: from the labels that the task names, or those in the training data; or none."""
        if not self.task.needs_labels:
            return ()
        task = cast(LabelledTask, self.task)
        return task.classes(task.labels or sorted(set(self._used_labels(task))))

    def _used_labels(self, task: LabelledTask) -> Iterator[str]:
        """The labels that the silos would report."""
        discovery = discovery_of(task)
        least = discovery.min_rows if discovery.allowed else 1
        for counts in self.label_counts().values():
            yield from (label for label, count in counts.items() if count >= least)

    def label_counts(self) -> dict[str, dict[str, int]]:
        """Silo → label → training rows that have it. For the eyes of the machine that has the data."""
        task = cast(LabelledTask, self.task)
        found: dict[str, dict[str, int]] = {}
        for name, node in holders(self.federation).items():
            counts = UnitCounts()
            for source in node.sources:
                for row in rows(source, "train", self.federation.data, Problems()):
                    counts.add(task.labels_in(row, source))
            found[name] = counts.at_least(1)
        return found


def other_languages(some: list[Row], text: str, language: str) -> Iterator[tuple[Row, str]]:
    """Each row whose text is not in ``language``, with the detected language; none without the language detector."""
    from hansa.data.importing.sentences import other_language

    for row in some:
        try:
            detected = other_language(str(row.get(text, "")), language)
        except UserError:  # the detector is an optional dependency that is not installed
            return
        if detected:
            yield row, detected.partition(",")[0]


def language_warning(silo: str, language: str, count: int, foreign: ForeignTexts) -> str:
    """A warning if many of a silo's ``count`` texts are not in the language that it declares; otherwise empty."""
    checked, others = min(count, DETECTED), foreign.languages.total()
    if others <= MAX_FOREIGN * checked:
        return ""
    most = foreign.languages.most_common(1)[0][0]
    return (
        f"silo {silo} declares the language {language}, but {others} of {checked} checked texts are in another "
        f"language, most of them in {most}, the first at {foreign.first}; correct 'language:', or remove these texts "
        "with 'hansa data import'"
    )
