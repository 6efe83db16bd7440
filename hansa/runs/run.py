"""A whole run: survey the silos, agree on a tokeniser and a start, then round after round until the model is done."""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic, perf_counter
from typing import Literal

import torch

from hansa.client.evaluation import PARTS, deviations, whole
from hansa.client.runtime import Runtime
from hansa.client.silo import PERSONAL
from hansa.config.checks import check
from hansa.config.federation import Federation
from hansa.config.nodes import leaves
from hansa.core import device, wire
from hansa.core.compression import restore_local
from hansa.core.errors import RunFailed, UserError
from hansa.core.link import Link
from hansa.core.messages import DataCard, Evaluate, Failure, NodeId, Scores, Update, nothing
from hansa.core.participation import ServerState
from hansa.core.round import Record, federated_round
from hansa.files import atomically
from hansa.links.local import LocalLink
from hansa.links.pool import PoolLink
from hansa.links.ray import RayLink
from hansa.methods import centroid_noise as release
from hansa.models.adapt import merged
from hansa.models.library import transformers
from hansa.privacy.dp.updates import spent
from hansa.runs import baselines
from hansa.runs.callbacks import NoCallbacks, RunCallbacks
from hansa.runs.directory import RunDirectory
from hansa.runs.ledger import OWN, Ledger
from hansa.runs.model_card import model_card
from hansa.runs.personalisation import hand_off
from hansa.runs.start import begin, describe
from hansa.runs.topology import build_topology, own_models
from hansa.tasks.base import Writing

Links = Literal["pool", "ray"]


@dataclass(frozen=True)
class Outcome:
    folder: Path
    metrics: dict[str, dict[str, float]]  # group → metric → value, on the whole test set
    own: dict[str, dict[str, float]] = field(default_factory=dict)  # on a tree: node → metric → value, own model


def run(
    federation: Federation,
    out: Path | None = None,
    resume: bool = False,
    workers: int | None = None,
    watcher: RunCallbacks | None = None,
    over: Links = "pool",
) -> Outcome:
    """Run a federation file to its end. ``workers`` = 0 keeps everything in this process."""
    watcher = watcher or NoCallbacks()
    check(federation)
    directory = RunDirectory.create(federation, out, resume)
    watcher.say(f"writing to {directory.path}")
    ledger = Ledger(directory.path)
    try:
        with link_to(federation, directory.path, workers, watcher, over) as link:
            begin(federation, directory, link, ledger, watcher)
            cards = describe(federation, directory, link, ledger, watcher)
            arranged = baselines.arrange(federation, cards)
            if arranged is federation:
                return Run(federation, directory, link, cards, ledger, watcher).go()
        with link_to(arranged, directory.path, workers, watcher, over) as link:
            cards = describe(arranged, directory, link, ledger, watcher)
            return Run(arranged, directory, link, cards, ledger, watcher).go()
    except UserError:
        if not resume and directory.newest() is None:  # found wrong before anything was learned: leave nothing behind
            shutil.rmtree(directory.path)
        raise
    finally:
        ledger.close()


@contextmanager
def link_to(
    federation: Federation, folder: Path, workers: int | None, watcher: RunCallbacks, over: Links = "pool"
) -> Iterator[Link]:
    """A link to all silos of the tree. This process computes with one thread, as workers do: in-process runs then give
    the same bits, and beside busy workers a second thread would only get in their way."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        if workers == 0:
            runtime = Runtime(federation, folder, device=device.choose())
            yield LocalLink(runtime.answer)
        elif over == "ray":
            with RayLink(federation, folder, workers, watcher.silo) as cluster:
                yield cluster
        else:
            with PoolLink(federation, folder, workers, watcher.silo) as pool:
                transformers()  # while the process that workers are forked from imports it, too
                yield pool
    finally:
        torch.set_num_threads(threads)


# ── rounds ────────────────────────────────────────────────────────────────────────────────────────────────────────


class Run:
    def __init__(
        self,
        federation: Federation,
        directory: RunDirectory,
        link: Link,
        cards: Mapping[NodeId, DataCard],
        ledger: Ledger,
        watcher: RunCallbacks,
    ) -> None:
        self.federation, self.directory, self.cards = federation, directory, cards
        self.ledger, self.watcher = ledger, watcher
        self.workers = getattr(link, "size", 1)
        self.far = getattr(link, "far", False)  # silos keep what is their own in other organisations
        self.runtime = Runtime(federation, directory.path)
        self.silos = link
        grown = build_topology(self.runtime, link, cards)
        self.members, self.link, self.root = grown.members, grown.link, grown.root

    def go(self) -> Outcome:
        federation, watcher = self.federation, self.watcher
        moving = self._restore()
        self.ledger.rewind(moving.round)
        durable = moving.round
        watcher.begin(federation, moving.round, {n: c.samples() for n, c in self.cards.items()})
        if moving.round == 0:
            self._evaluate(moving)
        while moving.round < federation.rounds:
            record = self._round(moving, durable)
            if record.failed:
                self._checkpoint(moving)
                raise RunFailed(
                    f"{record.failed}; mend the cause, then continue with --resume (in {self.directory.path})"
                )
            seconds = dict(record.seconds)
            last = moving.round == federation.rounds
            if last or moving.round % federation.evaluate.every == 0:
                seconds["evaluate"] = self._evaluate(moving)
            self.ledger.round(record, seconds, self.workers)
            if last and federation.upload.steps:
                self._note_upload(moving, record)
            if last or moving.round % federation.checkpoint.every == 0 or moving.round == self._personal_start:
                began = perf_counter()
                self._checkpoint(moving)
                durable = moving.round
                seconds["checkpoint"] = perf_counter() - began
                self.ledger.checkpointed(moving.round, seconds["checkpoint"])
            watcher.round(record, seconds)
        self._save_models(moving)
        self._personalise(moving)
        if cost := release.spent(federation, moving.round):
            self.ledger.fact("privacy of offers", vars(cost))
        if costs := spent(federation, moving.round):
            self.ledger.fact("privacy", {name: vars(cost) for name, cost in costs.items()})
        watcher.end()
        return Outcome(self.directory.path, self.ledger.final(), self.ledger.final(f"{OWN} test"))

    def _note_upload(self, moving: ServerState, record: Record) -> None:
        """For the report: what an update would take whole, and how far tensors moved in the last round."""
        self.ledger.fact("whole_update", wire.size(Update(moving.model, 0, 0, 0, 0.0, 0.0)))
        names, sides = moving.model.layout.names, self.runtime.sides
        movement: dict[NodeId, dict[str, list[float]]] = {}
        for node, update in record.updates.items():
            for name, distance in zip(names, update.moved, strict=False):
                movement.setdefault(node, {}).setdefault(sides[name], []).append(distance)
        if movement:
            self.ledger.fact("movement", movement)

    def _round(self, moving: ServerState, durable: int) -> Record:
        if self.root is not None:
            return self.root.root_round(moving, durable)
        federation, method = self.federation, self.runtime.method
        sizes = self.runtime.sizes if method.exchange is not None else None
        return federated_round(federation.name, self.members, self.link, method, federation, moving, durable, sizes)

    @property
    def _personal_start(self) -> int | None:
        settings = self.federation.personal
        if settings is None:
            return None
        return self.federation.rounds if settings.start is None else settings.start

    def _checkpoint(self, moving: ServerState) -> None:
        self.directory.save(moving, self.federation.checkpoint.keep, self._personal_start)

    def _personalise(self, moving: ServerState) -> None:
        """After the last round, a model of its own for every silo; asked once, also by a run that is resumed."""
        settings = self.federation.personal
        if settings is None or "personal" in self.ledger.facts():
            return
        self.watcher.say(f"silos train models of their own, {settings.rounds} rounds each")
        names = list(leaves(self.federation.silos))
        start = self.runtime.start.only(moving.model.layout.names)
        if self._personal_start:
            start = self.directory.restore(self._personal_start).model
        found = hand_off(self.silos, names, settings, moving.round, moving.model, start, self.runtime.task)
        for name, reason in found.get("lost", {}).items():
            self.ledger.event(moving.round, name, "no personal model", reason)
        for name, known in () if self.far else found["silos"].items():
            self._card(self.directory.path / "silos" / name / "model", name, known["models"][known["kept"]])
        self.ledger.fact("personal", found)

    def _restore(self) -> ServerState:
        found = self.directory.newest()
        if found is not None:
            return found
        if self.root is not None:
            return self.root.begin()
        start = self.runtime.start
        shared = start.only(self.runtime.shared.names).copy()
        return ServerState(shared, self.runtime.method.server.begin(shared.layout))

    def _evaluate(self, moving: ServerState) -> float:
        """Score the model everywhere: while running, on a share of the validation data (of the test data where some
        silo has no validation data, as in the Medical paper); at the end also on the whole test set."""
        began = perf_counter()
        validated = all(card.samples("valid") for card in self.cards.values())
        looks = [("valid" if validated else "test", self.federation.evaluate.share)]
        if moving.round == self.federation.rounds:
            looks.append(("test", 1.0))
        for split, share in dict.fromkeys(looks):
            final = (split, share) == ("test", 1.0)
            parts, decode = PARTS if final else 1, self._decodes(moving, split)
            scores = self._scores(Evaluate(moving.round, moving.model, split, share, parts, decode=decode))
            if final:
                self.ledger.fact("deviations", deviations(self.runtime.task, scores))
                if isinstance(self.runtime.task, Writing):
                    self.ledger.fact("signatures", self.runtime.task.signatures)
                scores = whole(scores)
            metrics = {group: self.runtime.task.metrics(sums) for group, sums in scores.sums.items()}
            self.ledger.scores(moving.round, split, share, metrics)
            self.watcher.scores(moving.round, metrics, self.runtime.task.headline)
            if self.root is not None:
                self._evaluate_own(moving, split, share)
            if final and moving.round == self.federation.rounds and self.runtime.method.upload.keeps_local:
                own = self._scores(Evaluate(moving.round, moving.model, split, share, decode=decode, own=True))
                found = {group: self.runtime.task.metrics(sums) for group, sums in own.sums.items()}
                self.ledger.scores(moving.round, f"{OWN} {split}", share, found)
        return perf_counter() - began

    def _evaluate_own(self, moving: ServerState, split: str, share: float) -> None:
        """On a tree, every node's own model on its own data; the root's is the global one."""
        assert self.root is not None
        own = Evaluate(moving.round, nothing(), split, share, by_node=True)
        asks = dict.fromkeys(self.members, own)
        if self.root.own:
            asks[self.root.name] = replace(own, model=moving.model)
        scores = self._ask_scores(asks)
        metrics = {node: self.runtime.task.metrics(sums) for node, sums in scores.sums.items()}
        self.ledger.scores(moving.round, f"{OWN} {split}", share, metrics)
        self.watcher.own(moving.round, metrics, self.runtime.task.headline)

    def _decodes(self, moving: ServerState, split: str) -> bool:
        """Whether texts are written and compared, which takes long: on test data at the end, else as often as asked."""
        settings = self.federation.evaluate
        at_the_end = split == "test" and moving.round == self.federation.rounds
        return at_the_end or bool(settings.decode and moving.round % (settings.every * settings.decode) == 0)

    def _scores(self, request: Evaluate) -> Scores:
        asks = dict.fromkeys(self.members, request)
        if self.root is not None and self.root.own and not self.root.mixture:
            asks[self.root.name] = request
        return self._ask_scores(asks)

    def _ask_scores(self, asks: Mapping[NodeId, Evaluate]) -> Scores:
        """The sum of what members answer; whoever does not is named in the ledger and left out of the figures."""
        deadline = self.federation.participation.deadline
        until = None if deadline is None else monotonic() + deadline
        total = Scores({})
        lost: dict[NodeId, str] = {}
        round = next(iter(asks.values())).round
        for answer in self.link.ask(asks, until):
            if isinstance(answer.reply, Scores) and self._sensible(answer.reply):
                total = total + answer.reply
            else:
                lost[answer.node] = (
                    answer.reply.reason if isinstance(answer.reply, Failure) else "it sent no scores of this task"
                )
                self.ledger.event(round, answer.node, "not evaluated", lost[answer.node])
        if len(lost) == len(asks):
            raise RunFailed(f"round {round}: nobody could evaluate the model ({'; '.join(lost.values())})")
        return total

    def _sensible(self, scores: Scores) -> bool:
        """Whether metrics can be made of them."""
        try:
            return all(self.runtime.task.metrics(sums) for sums in scores.sums.values() if sums)  # a part may be empty
        except (ArithmeticError, LookupError, ValueError):
            return False

    def _save_models(self, moving: ServerState) -> None:
        """The model as a plain Hugging Face folder; personal models beside it where silos have their own."""
        runtime, learner = self.runtime, self.runtime.learner
        learner.state.write(moving.model)
        if moving.model.layout.names:
            self._export(self.directory.model, "")
        if self.root is not None and not self.far:
            self._save_own(moving.round)
        personal = [n for n in learner.layout.names if n not in set(moving.model.layout.names)]
        keeps = bool(personal) or runtime.method.upload.keeps_local
        for name in leaves(self.federation.silos) if keeps and not self.far else ():
            if (self.directory.path / "silos" / name / "personal.json").exists():
                continue  # the silo has chosen its model: this run was resumed after that
            memory = runtime.silo(name).memory.newest()
            learner.state.write(moving.model)
            restore_local(learner.state, memory)
            for tensor in personal:
                own = memory.get(f"{PERSONAL}.{tensor}")
                learner.state[tensor].copy_(own if own is not None else runtime.start[tensor])
            self._export(self.directory.path / "silos" / name / "model", name)

    def _save_own(self, round: int) -> None:
        """On a tree, every node's own model, as a plain folder of its own."""
        scores = self.ledger.final(f"{OWN} test")
        for name, model in own_models(self.runtime, self.federation.silos, round):
            self.runtime.learner.state.write(model)
            own = {name: scores[name]} if name in scores else {}
            self._export(self.directory.path / "silos" / name / "model", name, own)

    def _export(self, folder: Path, silo: str, metrics: Mapping[str, Mapping[str, float]] | None = None) -> None:
        with atomically(folder) as draft:
            merged(self.runtime.learner.model).save_pretrained(draft)
            self.runtime.vocabulary.tokenizer.save_pretrained(draft)
            self._card(draft, silo, self.ledger.final() if metrics is None else metrics)

    def _card(self, folder: Path, silo: str, metrics: Mapping[str, Mapping[str, float]]) -> None:
        card = model_card(self.federation, self.cards, metrics, self.ledger.facts(), silo)
        (folder / "README.md").write_text(card, encoding="utf-8")
