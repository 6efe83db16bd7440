"""A whole run: collect the vocabulary, agree on a start, then round after round until the model is done."""

import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Literal

import torch

from hansa.client.host import SiloHost
from hansa.client.runtime import Runtime
from hansa.config.checks import check
from hansa.config.federation import Federation
from hansa.config.nodes import leaves
from hansa.core import device, wire
from hansa.core.arrivals import BufferState
from hansa.core.downlink import DownlinkState
from hansa.core.encoded_downlink import SentModel
from hansa.core.errors import RunFailed, UserError
from hansa.core.hierarchy import LayerState
from hansa.core.link import Link
from hansa.core.memory import peak_memory
from hansa.core.messages import LEFT, DataCard, NodeId, Update
from hansa.core.round import Record
from hansa.core.state import DOWNLINK, HIERARCHY, PARTICIPATION, SENT, ServerState
from hansa.core.tensors import Tensors
from hansa.core.update_copies import UpdateCopies
from hansa.links.local import LocalLink
from hansa.links.pool import PoolLink
from hansa.links.ray import RayLink
from hansa.models.library import transformers
from hansa.privacy.dp.prices import exchange_price, update_prices
from hansa.runs import baselines
from hansa.runs.callbacks import CurrentRun, Evaluation, RoundRecord, RunEvents
from hansa.runs.directory import RunDirectory
from hansa.runs.evaluation import Evaluator
from hansa.runs.export import Exporter
from hansa.runs.ledger import OWN, Ledger
from hansa.runs.masked_evaluation import masked_evaluation
from hansa.runs.personalisation import personal_models
from hansa.runs.remains import note_withdrawal
from hansa.runs.result import Result
from hansa.runs.selection import BEST, Selection
from hansa.runs.shares import round_weights
from hansa.runs.start import begin, describe
from hansa.runs.topology import build_topology

Links = Literal["pool", "ray"]


def run(
    federation: Federation,
    out: Path | None = None,
    resume: bool = False,
    workers: int | None = None,
    callbacks: Iterable[object] = (),
    over: Links = "pool",
) -> Result:
    """Run a federation file to its end.

    ``out``: the run directory, by default ``runs/NAME``; ``resume``: continue from its newest checkpoint; ``workers``:
    processes, by default one per core, 0 keeps everything in this process; ``callbacks``: see `hansa.runs.callbacks`;
    ``over``: the link to the silos. Raises `UserError` for wrong input, and `RunFailed` if the run cannot go on; it can
    then be resumed.
    """
    with opened(federation, out, resume, workers, callbacks, over) as one:
        return one.go()


@contextmanager
def opened(
    federation: Federation,
    out: Path | None = None,
    resume: bool = False,
    workers: int | None = None,
    callbacks: Iterable[object] = (),
    over: Links = "pool",
) -> Iterator["Run"]:
    """A run that is ready for its first round; see `run`. On the way out its workers stop and its files are closed.

    It calls `on_failure` of the callbacks for an error that ends the run, and for an interruption.
    """
    events = RunEvents(callbacks)
    check(federation)
    directory = RunDirectory.create(federation, out, resume)
    events.begin(CurrentRun(federation, directory.path))
    usual = Path("runs") / federation.name
    taken = out is None and not resume and directory.path != usual
    events.say(f"{usual} exists: writing to {directory.path}" if taken else f"writing to {directory.path}")
    ledger = Ledger(directory.path)
    try:
        with ExitStack() as stack:
            link = stack.enter_context(link_to(federation, directory.path, workers, events, over))
            begin(federation, directory, link, ledger, events)
            events.say("silos prepare their data")
            cards = describe(federation, directory, link, ledger, events)
            arranged = baselines.arrange(federation, cards)
            if arranged is not federation:
                stack.close()
                link = stack.enter_context(link_to(arranged, directory.path, workers, events, over))
                cards = describe(arranged, directory, link, ledger, events)
            yield Run(arranged, directory, link, cards, ledger, events)
    except GeneratorExit:
        raise
    except BaseException as error:
        events.tell("on_failure", error)
        if isinstance(error, UserError) and not resume and not directory.checkpoints():
            shutil.rmtree(directory.path)  # found wrong before anything was learned: leave nothing behind
        raise
    finally:
        ledger.close()


@contextmanager
def link_to(
    federation: Federation, folder: Path, workers: int | None, events: RunEvents, over: Links = "pool"
) -> Iterator[Link]:
    """A link to all silos of the tree.

    This process computes with one thread, as workers do: in-process runs then give the same bits, and beside busy
    workers a second thread would only get in their way.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        if workers == 0:
            host = SiloHost(Runtime(federation, folder, device=device.choose()))
            yield LocalLink(host.answer)
        elif over == "ray":
            with RayLink(federation, folder, workers, events.silo) as cluster:
                yield cluster
        else:
            with PoolLink(federation, folder, workers, events.silo) as pool:
                transformers()  # while the process that workers are forked from imports it, too
                yield pool
    finally:
        torch.set_num_threads(threads)


class Run:
    """The rounds of a run, from the newest checkpoint to the last round, and what follows them."""

    def __init__(
        self,
        federation: Federation,
        directory: RunDirectory,
        link: Link,
        cards: Mapping[NodeId, DataCard],
        ledger: Ledger,
        events: RunEvents,
    ) -> None:
        self.federation, self.directory, self.link, self.cards = federation, directory, link, cards
        self.ledger, self.events = ledger, events
        self.current = events.run or CurrentRun(federation, directory.path)
        events.begin(self.current)
        self.copies: UpdateCopies | None = None  # keeps the updates of a round for `hansa.rounds`
        self._build()

    def _build(self) -> None:
        """Build the tree of nodes for the silos that take part."""
        federation, cards = self.federation, self.cards
        self.host = SiloHost(Runtime(federation, self.directory.path))
        self.root = build_topology(self.host, self.link, cards)
        task, masked = self.host.runtime.task, masked_evaluation(self.host.runtime, self.root)
        self.evaluator = Evaluator(federation, self.root, task, cards, self.ledger, self.events, masked)
        self.selection = Selection(federation, task, self.ledger, self.directory)
        self.exporter = Exporter(self.host, self.directory, cards, self.ledger, self.link.remote)

    def go(self) -> Result:
        """Run to the end."""
        for _ in self.rounds():
            pass
        return self.result

    @property
    def result(self) -> Result:
        """What the run has come to."""
        return Result(self.directory.path, self.ledger.final(), self.ledger.final(f"{OWN} test"))

    def rounds(self) -> Iterator[RoundRecord]:
        """Run round after round; after the last one, or after `CurrentRun.stop`, evaluate and save the model.

        If the caller stops iterating, the run writes a checkpoint of its last round.
        """
        state, rounds, current = self._restore(), self.federation.rounds, self.current
        self.ledger.rewind(state.round)
        durable = current.round = current.resumed_after = state.round
        current.samples = {name: card.samples() for name, card in self.cards.items()}
        self.events.tell("on_run_start")
        keeps_best = self.federation.evaluate.keep_best
        if state.round == 0:
            self.evaluator.evaluate(state, last=rounds == 0 and not keeps_best)
            self.selection.note(state, current)
        while state.round < rounds and not current.stop_reason:
            self.events.tell("on_round_start", state.round + 1)
            record = self._round(state, durable)
            left = [node for node, reason in record.failures.items() if reason == LEFT and node in self.cards]
            if left:
                self._go_on_without(left, state)
            if record.failed and left:
                continue  # the round is repeated without them
            if record.failed:
                self._checkpoint(state)
                raise RunFailed(
                    f"{record.failed}; mend the cause, then continue the run in {self.directory.path} with 'hansa run "
                    "--resume', or with 'hansa serve' as before"
                )
            durable, noted = self._note(state, record, durable)
            try:
                yield noted
            except GeneratorExit:
                if durable < state.round:
                    self._checkpoint(state)
                raise
        if current.stop_reason:
            self._stop_early(state, durable)
        if keeps_best and self.selection.take_best(state):
            best = self.ledger.facts()[BEST]
            self.events.say(f"the best model is that of round {best['round']} ({best['metric']} {best['value']:.4g})")
            self.evaluator.final(state)
        self.exporter.save(state)
        self._personalise(state)
        self._note_prices(state.round)
        self.ledger.fact("memory", {"server": peak_memory(), "workers": getattr(self.link, "peak_memory", list)()})
        self.events.tell("on_run_end", self.result)

    def _round(self, state: ServerState, durable: int) -> Record:
        if self.copies is None:
            return self.root.root_round(state, durable)
        self.copies.clear()
        return self.root.root_round(state, durable, self.copies)

    def _stop_early(self, state: ServerState, durable: int) -> None:
        """Evaluate and checkpoint the model of a run that a callback stopped, as after the last round."""
        reason = self.current.stop_reason
        self.events.say(f"stopped after round {state.round} of {self.federation.rounds}: {reason}")
        self.ledger.fact("stopped", {"round": state.round, "reason": reason})
        if state.round < self.federation.rounds and not self.federation.evaluate.keep_best:
            self.evaluator.evaluate(state, last=True)
        if durable < state.round:
            self._checkpoint(state)

    def _go_on_without(self, left: list[NodeId], state: ServerState) -> None:
        """Leave silos that have left for good out of all later rounds; raises `RunFailed` if no silo is left."""
        for node in left:
            self.events.say(f"{node} has left the federation after round {state.round}; later rounds go on without it")
            note_withdrawal(self.ledger, node, self.cards[node].samples(), state.round)
        self.cards = {node: card for node, card in self.cards.items() if node not in left}
        if not self.cards:
            raise RunFailed(f"all silos have left the federation; the last checkpoint is in {self.directory.path}")
        silos = {node: one for node, one in self.federation.silos.items() if node not in left}
        self.federation = self.federation.model_copy(update={"silos": silos})
        pending = state.slots.get(PARTICIPATION)
        if isinstance(pending, BufferState):
            work = tuple(one for one in pending.pending if one.node not in left)
            state.slots[PARTICIPATION] = replace(pending, pending=work)
        self._build()

    def _note(self, state: ServerState, record: Record, durable: int) -> tuple[int, RoundRecord]:
        """After a round: evaluate, note and checkpoint as often as the file says.

        Return the durable round, and the record of this one.
        """
        federation, seconds, last = self.federation, dict(record.seconds), state.round == self.federation.rounds
        self.current.round = state.round
        scores: list[Evaluation] = []
        if last or state.round % federation.evaluate.every == 0:
            began = perf_counter()
            scores = self.evaluator.evaluate(state, last and not federation.evaluate.keep_best)
            seconds["evaluate"] = perf_counter() - began
        self.ledger.round(record, seconds, self.link.size, round_weights(self.root.server, record))
        if scores:
            self.selection.note(state, self.current)
        if last and federation.upload.steps:
            self._note_upload(state, record)
        if last or state.round % federation.checkpoint.every == 0 or state.round == self._personal_start:
            began = perf_counter()
            self._checkpoint(state)
            durable = state.round
            seconds["checkpoint"] = perf_counter() - began
            self.ledger.checkpointed(state.round, seconds["checkpoint"])
        noted = RoundRecord.of(record, seconds, scores, self.copies.updates if self.copies is not None else {})
        self.events.tell("on_round_end", noted)
        return durable, noted

    def _note_upload(self, state: ServerState, record: Record) -> None:
        """For the report: what an update would take whole, and how far tensors moved in the last round."""
        self.ledger.fact("whole_update", wire.size(Update(state.model, 0, 0, 0, 0.0, 0.0)))
        movement: dict[NodeId, dict[str, list[float]]] = {}
        for node, update in record.updates.items():
            for name, distance in zip(state.model.layout.names, update.movement, strict=False):
                side = self.host.runtime.sides[name]
                movement.setdefault(node, {}).setdefault(side, []).append(distance)
        if movement:
            self.ledger.fact("movement", movement)

    def _note_prices(self, rounds: int) -> None:
        """What the releases of the run have cost in privacy."""
        if cost := exchange_price(self.federation, rounds):
            self.ledger.fact("privacy of offers", vars(cost))
        if costs := update_prices(self.federation, rounds):
            self.ledger.fact("privacy", {name: vars(cost) for name, cost in costs.items()})

    # ── checkpoints ───────────────────────────────────────────────────────────────────────────────────────────────

    def _restore(self) -> ServerState:
        """The newest checkpoint, or the state before the first round.

        A checkpoint is read without the model's code, whose import takes seconds: the types of the slots' states do not
        depend on the model.
        """
        runtime = self.host.runtime
        kinds = {slot: type(state) for slot, state in self.root.begin(Tensors.of({})).slots.items()}
        kinds |= {HIERARCHY: LayerState, DOWNLINK: DownlinkState, SENT: SentModel}
        if (rule := runtime.method.participation.state) is not None:
            kinds[PARTICIPATION] = rule
        if (found := self.directory.newest(kinds)) is not None:
            return found
        start = self.root.tree.start if self.root.tree is not None else runtime.start.only(runtime.shared.names)
        return self.root.begin(start.copy())

    def _checkpoint(self, state: ServerState) -> None:
        folder = self.directory.save(state, self.federation.checkpoint.keep, self._personal_start)
        self.events.tell("on_checkpoint", folder)

    # ── personal models ───────────────────────────────────────────────────────────────────────────────────────────

    @property
    def _personal_start(self) -> int | None:
        settings = self.federation.personal
        if settings is None:
            return None
        return self.federation.rounds if settings.start is None else settings.start

    def _personalise(self, state: ServerState) -> None:
        """After the last round, a model of its own for every silo; asked once, also by a run that is resumed."""
        settings = self.federation.personal
        if settings is None or "personal" in self.ledger.facts():
            return
        self.events.say(f"silos train models of their own, {settings.rounds} rounds each")
        names, task = list(leaves(self.federation.silos)), self.host.runtime.task
        start = self.host.runtime.start.only(state.model.layout.names)
        if settings.start is None:
            start = state.model
        elif self._personal_start:
            start = self.directory.restore(self._personal_start, {}).model
        tell = partial(self.events.tell, "on_phase", "personal models")
        found = personal_models(self.link, names, settings, state.round, state.model, start, task, tell)
        for name, reason in found.get("lost", {}).items():
            self.ledger.event(state.round, name, "no personal model", reason)
        for name, known in () if self.link.remote else found["silos"].items():
            folder = self.directory.path / "silos" / name / "model"
            self.exporter.card(folder, name, known["models"][known["kept"]])
        self.ledger.fact("personal", found)
