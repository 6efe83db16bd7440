"""What a silo releases before there is a model: counts of words, and names of labels.

Both are counted by row (or by a larger unit, such as a patient), and what fewer units have than the federation file
says does not leave. A request for anything that the federation file does not provide for is refused: a coordinator
cannot lower a floor, nor ask for labels that are listed or that silos were not asked to report.
"""

from collections.abc import Callable, Hashable, Iterator
from typing import cast

from hansa.client.runtime import Runtime
from hansa.config.nodes import Holder
from hansa.config.tree import federated_vocabulary
from hansa.core.errors import DataError
from hansa.core.messages import CollectVocabulary, Failure, VocabularyCounts
from hansa.data.rows import Problems, Row
from hansa.data.source import Source
from hansa.data.splits import rows
from hansa.data.units import UnitCounts
from hansa.models.tokenizer import Document, count_pieces
from hansa.tasks.base import LabelledTask, discovery_of, texts_of

MAX_LABELS = 50  # so many different labels are plausible, however few rows there are

UnitOf = Callable[[Row, Source], Hashable | None]


def own_unit(row: Row, source: Source) -> None:
    """Every row is a unit of its own."""


def collect_vocabulary(
    name: str, holder: Holder, runtime: Runtime, request: CollectVocabulary, unit_of: UnitOf = own_unit
) -> VocabularyCounts | Failure:
    """The reply of silo ``name`` to a request for words and labels.

    ``unit_of``: what a row belongs to, for counting. Raises `DataError` if the labels are texts.
    """
    if (refusal := refused(runtime, request)) is not None:
        return refusal
    problems, data, task = Problems(), runtime.federation.data, runtime.task
    texts_in, labels, seen = texts_of(task), UnitCounts(), 0

    def documents() -> Iterator[Document]:
        """One by one: all of a silo's text may be more than its memory."""
        nonlocal seen
        for source in holder.sources:
            for row in rows(source, "train", data, problems):
                seen += 1
                unit = unit_of(row, source)
                if request.labels:
                    labels.add(cast(LabelledTask, task).labels_in(row, source), unit)
                if request.min_count:
                    yield unit, texts_in(row, source)
            problems.check(data.max_bad_rows, source.train)

    pieces, withheld = count_pieces(documents(), request.min_count)
    if len(labels) > max(MAX_LABELS, seen // 2):
        raise DataError(
            f"silos.{name}: {len(labels)} different labels in {seen} rows: this field looks like free text, which must "
            "not leave the silo; name the right field with 'label:', or list the labels in task.labels"
        )
    return VocabularyCounts(pieces, tuple(labels.at_least(request.labels)) if request.labels else (), withheld)


def refused(runtime: Runtime, request: CollectVocabulary) -> Failure | None:
    """Why a request asks for more than the federation file of this silo provides for; None if it does not."""
    federation, task = runtime.federation, runtime.task
    provided = federation.tokenizer.min_count if federated_vocabulary(federation) else 0
    if request.min_count and (not provided or request.min_count < provided):
        return Failure(
            "it was asked for words in fewer rows than tokenizer.min_count allows, or for a vocabulary that its "
            "settings do not build"
        )
    if not request.labels:
        return None
    if not task.needs_labels or cast(LabelledTask, task).labels:
        return Failure("its settings list the labels of the task, so it reports none")
    discovery = discovery_of(task)
    if runtime.deployed and not discovery.allowed:
        return Failure(
            "its settings do not let it report labels: list them in task.labels, or set task.discover_labels: true"
        )
    if request.labels < (discovery.min_rows if discovery.allowed else 1):
        return Failure(
            f"it was asked for labels that at least {request.labels} rows have, and its settings allow only those in "
            f"at least {discovery.min_rows} rows (task.min_label_rows)"
        )
    return None
