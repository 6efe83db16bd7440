"""Evaluation during and after a run: asks the nodes for scores, adds them up and notes them in the ledger."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from time import monotonic

from hansa.client.evaluation import deviations, whole
from hansa.config.federation import Federation
from hansa.core.errors import RunFailed
from hansa.core.inner_node import InnerNode
from hansa.core.messages import PARTS, DataCard, Evaluate, Failure, NodeId, Request, Scores, no_tensors
from hansa.core.participation import deadline_of
from hansa.core.state import ServerState
from hansa.runs.callbacks import Evaluation, RunEvents
from hansa.runs.ledger import OWN, Ledger
from hansa.runs.masked_evaluation import MaskedEvaluation
from hansa.tasks.base import GenerationTask, Task


@dataclass(frozen=True)
class PostedEvaluation:
    """An evaluation of an asynchronous run that the silos work on; its scores are collected at the next one."""

    round: int
    split: str
    share: float
    asks: Mapping[NodeId, Request]


@dataclass
class Evaluator:
    """Scores the model of a run at every node.

    With an asynchronous method between organisations, no silo is awaited: silos score the model between two works, and
    the scores are collected when the next evaluation begins, or after the last round.
    """

    federation: Federation
    root: InnerNode
    task: Task
    cards: Mapping[NodeId, DataCard]
    ledger: Ledger
    events: RunEvents
    masked: MaskedEvaluation | None = None  # where silos send their scores under masks
    posted: PostedEvaluation | None = None

    def evaluate(self, state: ServerState, last: bool = False) -> list[Evaluation]:
        """Score the model everywhere; return the scores, which are in the ledger then.

        While running: on a share of the validation data (of the test data where some silo has no validation data, as in
        the Medical paper). At the end (``last``) also on the whole test set.
        """
        found = self._collect()
        validated = all(card.samples("valid") for card in self.cards.values())
        looks = [("valid" if validated else "test", self.federation.evaluate.share)]
        if last:
            looks.append(("test", 1.0))
        if not last and state.round and self._posts:
            self._post(state, *looks[0])
            return found
        for split, share in dict.fromkeys(looks):
            found += self._look(state, split, share, (split, share) == ("test", 1.0), last)
        return found

    def final(self, state: ServerState) -> list[Evaluation]:
        """Score the model on the whole test set of every node, as at the end of a run."""
        return list(self._look(state, "test", 1.0, True, True))

    @property
    def _posts(self) -> bool:
        """Whether silos are asked for scores without waiting for them."""
        server = self.root.server
        return server.link.posting is not None and not server.method.participation.synchronous and not self.root.tree

    def _post(self, state: ServerState, split: str, share: float) -> None:
        """Ask for scores of a copy of the model, since the run goes on."""
        decode = self._decodes(state.round, split, False)
        request = Evaluate(state.round, state.model.copy(), split, share, 1, decode=decode)
        self.posted = PostedEvaluation(
            state.round, split, share, self.root.evaluation_asks(request, lambda: request.model)
        )
        posting = self.root.server.link.posting
        assert posting is not None
        posting.post(self.posted.asks, arrival=False)

    def _collect(self) -> list[Evaluation]:
        """The scores of a posted evaluation that have arrived; silos without are noted as not evaluated."""
        if self.posted is None:
            return []
        posted, self.posted = self.posted, None
        scores, silos = self._ask(posted.asks, posted.round, monotonic())
        return [self._noted(posted.round, posted.split, posted.share, scores, silos)]

    def _noted(
        self, round: int, split: str, share: float, scores: Scores, silos: Mapping[NodeId, Scores]
    ) -> Evaluation:
        """Note scores of the shared model in the ledger, and tell the callbacks."""
        by_silo = {silo: self._metrics(own) for silo, own in silos.items()}
        found = Evaluation(round, split, share, self.task.headline, self._metrics(scores), by_silo)
        self.ledger.scores(round, split, share, found.metrics, by_silo)
        self.events.tell("on_evaluate", found)
        return found

    def _look(self, state: ServerState, split: str, share: float, final: bool, last: bool) -> Iterator[Evaluation]:
        """Score the shared model on a split and, where nodes have models of their own, those."""
        task = self.task
        parts, decode = PARTS if final else 1, self._decodes(state.round, split, last)
        request = Evaluate(state.round, state.model, split, share, parts, decode=decode)
        silos: dict[NodeId, Scores] = {}
        if self.masked is not None:
            scores = self._ask_masked(self.masked, request)
        else:
            scores, silos = self._ask(self.root.evaluation_asks(request, lambda: state.model), state.round)
        if final:
            self.ledger.fact("deviations", deviations(task, scores))
            if isinstance(task, GenerationTask):
                self.ledger.fact("signatures", task.signatures)
            scores, silos = whole(scores), {silo: whole(own) for silo, own in silos.items()}
        yield self._noted(state.round, split, share, scores, silos)
        if self.root.tree is not None:
            yield self._own(state, replace(request, model=no_tensors(), parts=1, decode=False, by_node=True))
        elif final and last and self.root.method.upload.keeps_local:
            own, _ = self._ask(self.root.evaluation_asks(replace(request, parts=1, own=True), no_tensors), state.round)
            yield self._note_own(state.round, split, share, own)

    def _own(self, state: ServerState, request: Evaluate) -> Evaluation:
        """On a tree of models, every node's own model on its own data; the root's is the global one."""
        scores, _ = self._ask(self.root.evaluation_asks(request, lambda: state.model), state.round)
        return self._note_own(state.round, request.split, request.share, scores)

    def _note_own(self, round: int, split: str, share: float, scores: Scores) -> Evaluation:
        found = Evaluation(round, split, share, self.task.headline, self._metrics(scores), own=True)
        self.ledger.scores(round, f"{OWN} {split}", share, found.metrics, {})
        self.events.tell("on_evaluate", found)
        return found

    def _metrics(self, scores: Scores) -> dict[str, dict[str, float]]:
        return {group: self.task.metrics(sums) for group, sums in scores.sums.items() if sums}

    def _decodes(self, round: int, split: str, last: bool) -> bool:
        """Whether texts are generated, which takes long: on test data at the end, else as often as asked."""
        settings, at_the_end = self.federation.evaluate, split == "test" and last
        return at_the_end or bool(settings.decode and round % (settings.every * settings.decode) == 0)

    def _ask(
        self, asks: Mapping[NodeId, Request], round: int, until: float | None = None
    ) -> tuple[Scores, dict[NodeId, Scores]]:
        """The sum of what nodes answer, and what each answered; the ledger names those that gave no scores.

        ``until``: how long they are awaited, by default until the deadline of a round.
        """
        until = deadline_of(self.federation.participation) if until is None else until
        total, silos, failures = Scores({}), dict[NodeId, Scores](), dict[NodeId, str]()
        for answer in self.root.server.link.ask(asks, until):
            if isinstance(answer.reply, Scores) and self._sensible(answer.reply):
                total = total + answer.reply
                silos[answer.node] = answer.reply
            else:
                said = answer.reply.reason if isinstance(answer.reply, Failure) else "it sent no scores of this task"
                failures[answer.node] = said
                self.ledger.event(round, answer.node, "not evaluated", failures[answer.node])
        if len(failures) == len(asks):
            reasons = "; ".join(dict.fromkeys(failures.values()))
            if not self.root.server.link.remote:
                raise RunFailed(f"round {round}: no node could evaluate the model ({reasons})")
            # Silos may train without releasing scores: the run goes on without them.
            self.events.say(f"round {round}: no silo released scores ({reasons})")
        return total, silos

    def _ask_masked(self, masked: MaskedEvaluation, request: Evaluate) -> Scores:
        """The sums over the silos; empty, with the reason in the ledger, if they cannot be unmasked or are wrong."""
        scores, failures = masked.ask(request)
        for node, reason in failures.items():
            self.ledger.event(request.round, node, "not evaluated", reason)
        if not self._sensible(scores):
            said = "the sum of the scores is not one of this task: a silo sent wrong numbers"
            self.ledger.event(request.round, self.root.name, "not evaluated", said)
            return Scores({})
        return scores

    def _sensible(self, scores: Scores) -> bool:
        """Whether metrics can be computed from them."""
        try:
            return all(self.task.metrics(sums) for sums in scores.sums.values() if sums)  # a part may be empty
        except (ArithmeticError, LookupError, ValueError):
            return False
