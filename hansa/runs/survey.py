"""A survey: the silos agree on a key, count, and send figures and keyed sketches; this module puts them together.

The same steps run in a simulation and between organisations, over any link. A silo whose policy refuses sketches still
sends figures; a silo that refuses both, or does not answer, is listed with the reason.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import numpy as np

from hansa.client.host import SiloHost
from hansa.client.runtime import Runtime
from hansa.config.checks import check_data_files
from hansa.config.federation import Federation
from hansa.config.nodes import leaves, walk
from hansa.config.plugins import load_plugins
from hansa.core.errors import RunFailed
from hansa.core.link import Link
from hansa.core.messages import Failure, NodeId, Reply
from hansa.core.round import MAX_SAMPLES
from hansa.core.survey_messages import (
    OfferSurveyKey,
    Roster,
    SealedSurveyKey,
    SealSurveyKey,
    SiloFigures,
    SiloSketches,
    SurveyKeys,
    SurveyReply,
    SurveyReport,
    SurveyRequest,
    TakeSurvey,
    merged,
)
from hansa.data.survey.sketches import (
    DOCUMENT,
    WORD_PERMUTATIONS,
    Documents,
    jaccard,
    near_duplicates,
    unpacked,
)
from hansa.links.local import LocalLink
from hansa.privacy.policy.disclosures import survey_disclosures
from hansa.privacy.survey.key import MIN_SILOS
from hansa.runs.result import frame
from hansa.tasks.base import TASKS

Pair = tuple[NodeId, NodeId]
T = TypeVar("T", SurveyKeys, SealedSurveyKey, SurveyReport)


@dataclass(frozen=True)
class Survey:
    """What silos reported. Figures below the floor are missing; of pairs of silos they are None."""

    federation: str
    floor: int
    similarity: float
    figures: Mapping[NodeId, SiloFigures]
    labels: Mapping[NodeId, Mapping[str, int]]
    compared: Mapping[NodeId, tuple[int, int]]  # silo → documents that were sketched, and those long enough for it
    overlap: Mapping[Pair, float | None]  # Jaccard similarity of the vocabularies of two silos
    duplicates: Mapping[Pair, int | None]  # documents of the first silo that are similar to one of the second
    failures: Mapping[NodeId, str]  # silos that sent no figures, or no sketches, and why
    releases: tuple[str, ...] = field(default=())

    @property
    def silos(self) -> Any:
        """A data frame with one line per silo: rows, splits, different common words, sketched documents."""
        rows = []
        for name, one in self.figures.items():
            splits = [one.splits.get(split) for split in ("train", "valid", "test")]
            sketched = self.compared.get(name, (None, None))[0]
            rows.append([one.rows or None, *splits, one.vocabulary or None, sketched, ", ".join(one.withheld)])
        columns = ["rows", "train", "valid", "test", "common words", "documents sketched", "withheld"]
        return frame(rows, columns, list(self.figures))

    def counts(self, what: str) -> Any:
        """A data frame of rows by silo; ``what``: words, characters, languages or labels."""
        by_silo = self.labels if what == "labels" else {n: getattr(one, what) for n, one in self.figures.items()}
        keys = sorted({key for found in by_silo.values() for key in found})
        return frame([[found.get(key) for key in keys] for found in by_silo.values()], keys, list(by_silo))

    @property
    def shares(self) -> Any:
        """A data frame of the labels: which part of a silo's released labels each one is."""
        counts = self.counts("labels")
        return counts.div(counts.sum(axis=1), axis=0)

    @property
    def vocabulary_overlap(self) -> Any:
        """A data frame of silos by silos: the estimated Jaccard similarity of their vocabularies."""
        return self._square(self.overlap)

    @property
    def near_duplicates(self) -> Any:
        """A data frame: how many documents of the silo in the line are similar to one of the silo in the column."""
        return self._square(self.duplicates)

    def _square(self, pairs: Mapping[Pair, float | None]) -> Any:
        names = list(dict.fromkeys(name for pair in pairs for name in pair))
        return frame([[pairs.get((a, b)) for b in names] for a in names], names, names)

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain values, for JSON."""

        def nested(pairs: Mapping[Pair, float | None]) -> dict[str, dict[str, float | None]]:
            """The values of pairs as a dictionary of dictionaries: silo → other silo → value."""
            found: dict[str, dict[str, float | None]] = {}
            for (a, b), value in pairs.items():
                found.setdefault(a, {})[b] = value
            return found

        silos = {name: asdict(one) | {"labels": self.labels.get(name)} for name, one in self.figures.items()}
        for name, (sketched, documents) in self.compared.items():
            silos[name] |= {"documents_sketched": sketched, "documents": documents}
        return {
            "federation": self.federation,
            "floor": self.floor,
            "similarity": self.similarity,
            "silos": silos,
            "vocabulary_overlap": nested(self.overlap),
            "near_duplicates": nested(self.duplicates),
            "failures": dict(self.failures),
            "releases": list(self.releases),
        }


def simulate_survey(federation: Federation) -> Survey:
    """Survey the silos of a federation file on this machine.

    Raises `UserError` if their data cannot be read, and `RunFailed` if every silo's policy refuses.
    """
    load_plugins(federation.plugins)
    check_data_files(federation)
    settings = federation.as_survey()
    with TemporaryDirectory(prefix="hansa-survey-") as folder:
        host = SiloHost(Runtime(settings, Path(folder)))
        children = {name: {name} for name in leaves(settings.silos)}
        return take_survey(settings, LocalLink(host.answer, through_wire=True), children, lambda: None)


def below(federation: Federation) -> dict[NodeId, set[NodeId]]:
    """The direct children of the root, with the silos that each answers for."""
    nodes = dict(walk(federation.silos))
    return {name: set(leaves({name: nodes[name]})) for name in federation.silos}


def take_survey(
    federation: Federation, link: Link, children: Mapping[NodeId, set[NodeId]], until: Callable[[], float | None]
) -> Survey:
    """Survey the silos that a link reaches.

    ``children``: the nodes to ask, with the silos below each; ``until``: when to stop waiting, asked before each step.
    Raises `RunFailed` if no silo sends figures.
    """
    settings, failures = federation.surveyed, dict[NodeId, str]()
    ask = _Asking(link, children, until, failures)
    agreed = _agree(ask, children) if settings.sketches else None
    labels = settings.labels and TASKS.build(federation.task).needs_labels
    with_key = TakeSurvey(settings.floor, labels, *agreed) if agreed is not None else None
    requests: dict[NodeId, SurveyRequest] = {}
    for child, silos in children.items():
        taking = with_key is not None and bool(silos & with_key.roster.keys())
        requests[child] = with_key if with_key is not None and taking else TakeSurvey(settings.floor, labels)
    figures: dict[NodeId, SiloFigures] = {}
    shares: dict[NodeId, dict[str, int]] = {}
    sketches: dict[NodeId, SiloSketches] = {}
    for reply in ask(requests, SurveyReport):
        figures |= reply.figures
        shares |= reply.labels
        sketches |= reply.sketches
    if not figures:
        name, reason = next(iter(failures.items()))
        raise RunFailed(f"no silo took part in the survey; '{name}': {reason}")
    order = [name for silos in children.values() for name in sorted(silos)]
    checked = {n: found for n in order if n in sketches and (found := _checked(sketches[n], settings.max_documents))}
    overlap, duplicates = _compared(checked, settings.similarity, settings.floor)
    return Survey(
        federation.name,
        settings.floor,
        settings.similarity,
        {name: figures[name] for name in order if name in figures and _sensible(figures[name])},
        {name: shares[name] for name in order if name in shares},
        {name: (sketches[name].count, sketches[name].of) for name in checked},
        overlap,
        duplicates,
        failures,
        tuple(survey_disclosures(federation)),
    )


def relayed(name: NodeId, link: Link, children: list[NodeId], request: SurveyRequest) -> Reply:
    """At a region: the replies of the nodes below it as one; those that give none are left out."""
    answers = list(link.ask(dict.fromkeys(children, request), None))
    given = [answer.reply for answer in answers if isinstance(answer.reply, SurveyReply)]
    if not given:
        reasons = [answer.reply.reason for answer in answers if isinstance(answer.reply, Failure)]
        return Failure(f"region '{name}': {reasons[0] if reasons else 'no node below it took part'}")
    first, *rest = given
    for other in rest:
        first = merged(first, other)
    return first


@dataclass(frozen=True)
class _Asking:
    """Asks the children and notes who gave no usable reply."""

    link: Link
    children: Mapping[NodeId, set[NodeId]]
    until: Callable[[], float | None]
    failures: dict[NodeId, str]

    def __call__(self, requests: Mapping[NodeId, SurveyRequest], kind: type[T]) -> Iterator[T]:
        for answer in self.link.ask(requests, self.until()):
            reply, silos = answer.reply, self.children[answer.node]
            if isinstance(reply, kind) and _named(reply) <= silos:
                for silo in silos - _named(reply) if isinstance(reply, SurveyReport) else ():
                    self.failures.setdefault(silo, f"region '{answer.node}' has no reply of it")
                yield reply
            elif isinstance(reply, Failure):
                self.failures.setdefault(answer.node, reply.reason)
            else:
                self.failures.setdefault(answer.node, f"it sent a {type(reply).__name__} that was not asked for")


def _named(reply: SurveyReply) -> set[NodeId]:
    """The silos that a reply speaks for; a sealed key speaks for its readers, who check it themselves."""
    match reply:
        case SurveyKeys():
            return set(reply.keys)
        case SurveyReport():
            return {*reply.figures, *reply.labels, *reply.sketches}
        case _:
            return set()


def _agree(ask: _Asking, children: Mapping[NodeId, set[NodeId]]) -> tuple[Roster, NodeId, dict[str, str]] | None:
    """The roster, the leader and the encrypted key; None if fewer than two silos take part in the agreement."""
    roster: Roster = {}
    for offer in ask(dict.fromkeys(children, OfferSurveyKey()), SurveyKeys):
        roster |= offer.keys
    while len(roster) >= MIN_SILOS:
        leader = min(roster)
        through = next(child for child, silos in children.items() if leader in silos)
        for reply in ask({through: SealSurveyKey(dict(roster), leader)}, SealedSurveyKey):
            if reply.sealed.keys() == roster.keys():
                return roster, leader, reply.sealed
        del roster[leader]  # it cannot be reached any more: another one draws the key
    return None


def _checked(sent: SiloSketches, most: int) -> tuple[np.ndarray[Any, Any], Documents] | None:
    """The arrays of a silo's sketches; None if they are not what was asked for."""
    try:
        words, documents = unpacked(sent.vocabulary, np.uint64), unpacked(sent.documents, DOCUMENT)
    except ValueError:
        return None
    sizes = len(words) in (0, WORD_PERMUTATIONS) and len(documents) == sent.count <= min(most, max(sent.of, 0))
    return (words, documents) if sizes else None


def _sensible(one: SiloFigures) -> bool:
    counts = [one.rows, one.vocabulary]
    for part in (one.splits, one.words, one.characters, one.languages):
        counts += part.values()
    return all(0 <= count <= MAX_SAMPLES for count in counts)


def _compared(
    sketches: Mapping[NodeId, tuple[np.ndarray[Any, Any], Documents]], similarity: float, floor: int
) -> tuple[dict[Pair, float | None], dict[Pair, int | None]]:
    """The overlap of vocabularies and the near-duplicates of every pair of silos; counts below the floor are None."""
    overlap: dict[Pair, float | None] = {}
    duplicates: dict[Pair, int | None] = {}
    for a, (words, documents) in sketches.items():
        for b, (other_words, others) in sketches.items():
            if a != b:
                overlap[a, b] = jaccard(words, other_words)
            if not len(documents) or not len(others):
                duplicates[a, b] = None
                continue
            found = near_duplicates(documents, others, similarity, same=a == b)
            duplicates[a, b] = found if found >= floor or found == 0 else None
    return overlap, duplicates
