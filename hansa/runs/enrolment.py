"""Enrolment before the first round: which silos take part, with what data.

In a simulation every silo must answer. Between organisations a silo whose data cannot be read, whose policy forbids it,
whose clock is wrong, or whose reply is invalid does not stop the others: it is left out with the reason. A silo that
does not answer is awaited until `participation.enrolment` (by default the deadline of a round, at least a minute), and
longer only while the quorum is missing; so is a silo whose administrator has not decided on the run, which is asked
again and again. When the coordinator is restarted, silos that answered before are not asked
again; the others are.
"""

from collections.abc import Callable, Mapping
from math import ceil
from time import monotonic
from typing import TypeVar

from hansa.core.claims import outsized
from hansa.core.errors import DataError, RunFailed
from hansa.core.link import Link
from hansa.core.messages import (
    NO_ANSWER,
    NOT_APPROVED,
    CollectVocabulary,
    DataCard,
    DescribeData,
    Failure,
    NodeId,
    VocabularyCounts,
)
from hansa.core.participation import Participation, enrolment_deadline
from hansa.core.round import MAX_SAMPLES
from hansa.runs.callbacks import RunEvents
from hansa.runs.ledger import Ledger

MAX_WAIT_SECONDS = 7 * 86400.0  # for the quorum
ASK_AGAIN_SECONDS, MAX_PAUSE_SECONDS = 5.0, 120.0  # the first and the longest pause before such a silo is asked again

T = TypeVar("T", VocabularyCounts, DataCard)


def surveyed(
    link: Link,
    names: list[NodeId],
    request: CollectVocabulary,
    participation: Participation,
    ledger: Ledger,
    events: RunEvents,
) -> dict[NodeId, VocabularyCounts]:
    """Ask the silos for words and labels; return the valid replies.

    Raises `RunFailed` if fewer than the quorum answer.
    """
    found, lost = _gather(link, names, request, VocabularyCounts, _bad_counts, participation, events)
    _note(lost, ledger, events)
    return found


def described(
    link: Link,
    names: list[NodeId],
    watched: str,
    participation: Participation,
    ledger: Ledger,
    events: RunEvents,
    known: Mapping[NodeId, DataCard],
) -> dict[NodeId, DataCard]:
    """Ask the silos for their data cards; return those of the silos that can take part.

    ``watched``: the setting that needs validation data, if one does; ``known``: cards from when the run was begun.
    Raises `RunFailed` if fewer than the quorum answer, and in a simulation `DataError` for a silo that cannot take
    part.
    """
    remote = link.remote

    def odd(name: NodeId, card: DataCard) -> str:
        """Why a silo with this card cannot take part, empty if it can; raises `DataError` in a simulation."""
        wrong = _bad_card(card) or _unfit(name, card, watched)
        if wrong and not remote:
            raise DataError(wrong)
        return wrong

    before = {name: known[name] for name in names if name in known}
    rest = [name for name in names if name not in before]
    found, lost = _gather(link, rest, DescribeData(), DataCard, odd, participation, events, before)
    if remote and participation.max_share is None:
        large = outsized({name: card.samples() for name, card in found.items()})
        found, lost = {name: card for name, card in found.items() if name not in large}, lost | large
        _check_quorum(found, lost, len(names), participation, DescribeData.__name__)
    _note(lost, ledger, events)
    return {name: found[name] for name in names if name in found}


def _gather(
    link: Link,
    names: list[NodeId],
    request: CollectVocabulary | DescribeData,
    kind: type[T],
    flaw: Callable[[NodeId, T], str],
    participation: Participation,
    events: RunEvents,
    known: Mapping[NodeId, T] | None = None,
) -> tuple[dict[NodeId, T], dict[NodeId, str]]:
    """Replies that can be used, with those ``known`` before, and why others gave none.

    Between organisations, silos that have not answered by the deadline are asked again while the quorum is missing:
    without it the run cannot begin anyway. Silos that have not approved the run are asked again until the deadline,
    too: their administrators may need days.
    """
    found: dict[NodeId, T] = dict(known or {})
    lost: dict[NodeId, str] = {}
    total, asked, began = len(found) + len(names), names, monotonic()
    needed = max(1, ceil(participation.quorum * total)) if link.remote else total
    given_up, said, pause = enrolment_deadline(participation), "", ASK_AGAIN_SECONDS
    while asked:
        _stop_if_asked(events)
        deadline = enrolment_deadline(participation) if link.remote else None
        for answer in link.ask(dict.fromkeys(asked, request), deadline):
            reply = answer.reply
            lost.pop(answer.node, None)
            if not isinstance(reply, kind):
                lost[answer.node] = reply.reason if isinstance(reply, Failure) else f"it sent a {type(reply).__name__}"
            elif wrong := flaw(answer.node, reply):
                lost[answer.node] = wrong
            else:
                found[answer.node] = reply
        away: list[NodeId] = [name for name in asked if lost.get(name) == NO_ANSWER]
        undecided: list[NodeId] = [name for name in asked if lost.get(name, "").endswith(NOT_APPROVED)]
        possible = len(found) + len(away) + len(undecided) >= needed > len(found)
        again = [*away, *undecided] if possible else undecided if given_up is None or monotonic() < given_up else []
        asked = again if link.remote and monotonic() - began < MAX_WAIT_SECONDS else []
        if not asked:
            break
        waits_for = _awaited(len(found), total, needed, away, undecided)
        if waits_for != said:
            said = waits_for
            events.say(said)
        if undecided:
            events.wait(pause)
            pause = min(2 * pause, MAX_PAUSE_SECONDS)  # each answer is an entry in the silo's audit log
    _check_quorum(found, lost, total, participation, type(request).__name__, needed)
    return found, lost


def _stop_if_asked(events: RunEvents) -> None:
    """Raise `RunFailed` if a callback has stopped the run."""
    if events.run is not None and events.run.stop_reason:
        raise RunFailed(f"{events.run.stop_reason} before the first round, while silos were awaited")


def _check_quorum(
    found: Mapping[NodeId, object],
    lost: Mapping[NodeId, str],
    total: int,
    participation: Participation,
    request: str,
    needed: int | None = None,
) -> None:
    needed = max(1, ceil(participation.quorum * total)) if needed is None else needed
    if lost and len(found) < needed:
        name, reason = next(iter(lost.items()))
        others = f" (nor could {_few([other for other in lost if other != name])})" if len(lost) > 1 else ""
        raise RunFailed(
            f"silo '{name}' could not answer a {request} request{others}: {reason}; {len(found)} of {total} silos "
            f"answered and {needed} are needed: when the cause is mended, start the run again"
        )


def _awaited(answered: int, total: int, needed: int, away: list[NodeId], undecided: list[NodeId]) -> str:
    """Whom the run waits for, and why."""
    parts = [f"asking again {_few(away)}"] * bool(away) + [f"not approved yet by {_few(undecided)}"] * bool(undecided)
    return f"{answered} of {total} silos have answered, {needed} needed: {'; '.join(parts)}"


def _few(names: list[NodeId]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} others" if len(names) > 5 else "")


def _bad_counts(name: NodeId, found: VocabularyCounts) -> str:
    counts = (*found.pieces.values(), found.withheld)
    return (
        ""
        if all(0 <= count <= MAX_SAMPLES for count in counts)
        else f"it sent a word count outside of 0 to {MAX_SAMPLES:g}"
    )


def _bad_card(card: DataCard) -> str:
    counts = [count for groups in card.groups.values() for count in groups.values()]
    sensible = all(0 <= count <= MAX_SAMPLES for count in (*counts, card.per_round, card.steps))
    return "" if sensible else f"it claims a number of samples outside of 0 to {MAX_SAMPLES:g}"


def _unfit(name: NodeId, card: DataCard, watched: str) -> str:
    """Why a silo cannot take part with the data it has."""
    if not card.samples("train"):
        return (
            f"silos.{name}: no training samples are left after reading and splitting its data; give it more rows, or "
            "reduce data.valid and data.test"
        )
    if watched and not card.samples("valid"):
        return (
            f"silos.{name}: it has no validation samples, and '{watched}' goes by them: "
            "give it a 'valid:' file, or raise data.valid"
        )
    return ""


def check_cards(cards: Mapping[NodeId, DataCard], watched: str) -> None:
    """Raise `DataError` for a silo that cannot take part with its data; ``watched``: see `described`."""
    for name, card in cards.items():
        if wrong := _unfit(name, card, watched):
            raise DataError(wrong)


def _note(lost: Mapping[NodeId, str], ledger: Ledger, events: RunEvents) -> None:
    for name, reason in lost.items():
        events.say(f"{name} does not take part: {reason}")
        ledger.event(0, name, "lost", reason)
