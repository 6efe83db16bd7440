"""What `hansa check` reads: annotation as a run would read it, and whether texts are in the language a silo says."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import cast

from hansa.config.federation import Federation
from hansa.config.tree import federated_vocabulary, holders
from hansa.core.errors import UserError
from hansa.data.examples import Unusable, in_batches, note_sample
from hansa.data.rows import Problems, Row
from hansa.data.splits import rows
from hansa.data.source import Source
from hansa.models import tokenizer
from hansa.tasks.base import TASKS, LabelledTask, Task, Vocabulary, GenerationTask

LOOKED_AT = 200  # texts of a source, for their language
FOREIGN = 0.1  # of them in another language: the silo is told
ANY_LENGTH = 1 << 30


@dataclass
class Foreign:
    """Texts that are not in the language they should be in: in which they are, and where the first one stands."""

    languages: Counter[str] = field(default_factory=Counter)
    first: str = ""

    def look(self, some: list[Row], text: str, language: str) -> None:
        for row, seen in other_languages(some, text, language):
            self.languages[seen] += 1
            self.first = self.first or row.place


@dataclass(frozen=True)
class Reading:
    federation: Federation

    @cached_property
    def task(self) -> Task:
        return TASKS.build(self.federation.task)

    @property
    def _looks_closer(self) -> bool:
        """Whether rows have something beside a text that can be wrong."""
        return self.task.needs_labels or isinstance(self.task, GenerationTask)

    def source(self, source: Source) -> tuple[int, list[str], dict[str, Foreign]]:
        """Its training texts, what a run would say about its data, and by the language that texts should be in, the
        languages of those that are not."""
        count, said = 0, list[str]()
        sides = {source.text: source.language or ""}
        if isinstance(self.task, GenerationTask):
            sides[source.target] = source.target_language or ""
        foreign = {language: Foreign() for language in sides.values()}
        for split in ("train", "valid", "test") if self._looks_closer else ("train",):
            problems = Problems()
            for some in in_batches(rows(source, split, self.federation.data, problems), 2000):
                if split == "train":
                    for text, language in sides.items():
                        foreign[language].look(some[: max(0, LOOKED_AT - count)], text, language)
                    count += len(some)
                if self._looks_closer:
                    self._annotation(some, source, problems)
            problems.check(self.federation.data.max_bad_rows, source.files().get(split, source.train))
            said += [f"{split}: {line}" for line in problems.summary()]
        return count, said, foreign

    def _annotation(self, some: list[Row], source: Source, problems: Problems) -> None:
        for sample in self.task.encode(some, source, self.vocabulary):
            if isinstance(sample, Unusable):
                note_sample(problems, sample)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The run's own where it exists already. One that the silos will build is not known yet, nor is, then, which
        samples are too long."""
        settings, labels = self.federation.tokenizer, self.labels
        path = settings.path or self.federation.model.path
        if settings.kind == "bytes":
            return Vocabulary(tokenizer.byte_tokenizer(), self.federation.data.max_length, labels)
        if federated_vocabulary(self.federation) or not Path(str(path)).is_dir():
            return Vocabulary(tokenizer.byte_tokenizer(), ANY_LENGTH, labels)
        return Vocabulary(tokenizer.load(str(path)), self.federation.data.max_length, labels)

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """Of a task that has any: those it names, or those the silos' data have."""
        if not self.task.needs_labels:
            return ()
        task = cast(LabelledTask, self.task)
        return task.classes(task.labels or sorted(set(self._told(task))))

    def _told(self, task: LabelledTask) -> Iterator[str]:
        for node in holders(self.federation).values():
            for source in node.sources:
                for row in rows(source, "train", self.federation.data, Problems()):
                    yield from task.labels_in(row, source)


def other_languages(some: list[Row], text: str, language: str) -> Iterator[tuple[Row, str]]:
    """Each row whose text is surely not in this language, with the one it is in."""
    from hansa.data.importing.sentences import other_language

    for row in some:
        try:
            seen = other_language(str(row.get(text, "")), language)
        except UserError:  # the detector is not installed: an extra
            return
        if seen:
            yield row, seen.partition(",")[0]


def language_warning(silo: str, language: str, count: int, foreign: Foreign) -> str:
    looked_at, others = min(count, LOOKED_AT), foreign.languages.total()
    if others <= FOREIGN * looked_at:
        return ""
    most = foreign.languages.most_common(1)[0][0]
    return (
        f"{silo} says that its language is {language}, but {others} of the {looked_at} texts looked at are in another, "
        f"most in {most}, the first at {foreign.first}: correct 'language:', or leave them out ('hansa data import' "
        "does)"
    )
