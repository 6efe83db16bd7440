"""Evaluation during and after a run: asks the nodes for scores, adds them up and notes them in the ledger."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from time import perf_counter

from hansa.client.evaluation import deviations, whole
from hansa.config.federation import Federation
from hansa.core.errors import RunFailed
from hansa.core.inner_node import InnerNode
from hansa.core.messages import PARTS, DataCard, Evaluate, Failure, NodeId, Request, Scores, no_tensors
from hansa.core.participation import deadline_of
from hansa.core.state import ServerState
from hansa.runs.callbacks import RunCallbacks
from hansa.runs.ledger import OWN, Ledger
from hansa.tasks.base import GenerationTask, Task


@dataclass(frozen=True)
class Evaluator:
    """Scores the model of a run at every node."""

    federation: Federation
    root: InnerNode
    task: Task
    cards: Mapping[NodeId, DataCard]
    ledger: Ledger
    callbacks: RunCallbacks

    def evaluate(self, state: ServerState) -> float:
        """Score the model everywhere; return the seconds that it took.

        While running: on a share of the validation data (of the test data where some silo has no validation data, as in
        the Medical paper). At the end also on the whole test set.
        """
        began, last = perf_counter(), state.round == self.federation.rounds
        validated = all(card.samples("valid") for card in self.cards.values())
        looks = [("valid" if validated else "test", self.federation.evaluate.share)]
        if last:
            looks.append(("test", 1.0))
        for split, share in dict.fromkeys(looks):
            self._look(state, split, share, final=(split, share) == ("test", 1.0))
        return perf_counter() - began

    def _look(self, state: ServerState, split: str, share: float, final: bool) -> None:
        """Score the shared model on a split and, where nodes have models of their own, those."""
        task, last = self.task, state.round == self.federation.rounds
        parts, decode = PARTS if final else 1, self._decodes(state.round, split)
        request = Evaluate(state.round, state.model, split, share, parts, decode=decode)
        scores = self._ask(self.root.evaluation_asks(request, lambda: state.model), state.round)
        if final:
            self.ledger.fact("deviations", deviations(task, scores))
            if isinstance(task, GenerationTask):
                self.ledger.fact("signatures", task.signatures)
            scores = whole(scores)
        metrics = {group: task.metrics(sums) for group, sums in scores.sums.items()}
        self.ledger.scores(state.round, split, share, metrics)
        self.callbacks.scores(state.round, metrics, task.headline)
        if self.root.tree is not None:
            self._own(state, replace(request, model=no_tensors(), parts=1, decode=False, by_node=True))
        elif final and last and self.root.method.upload.keeps_local:
            own = self._ask(self.root.evaluation_asks(replace(request, parts=1, own=True), no_tensors), state.round)
            found = {group: task.metrics(sums) for group, sums in own.sums.items()}
            self.ledger.scores(state.round, f"{OWN} {split}", share, found)

    def _own(self, state: ServerState, request: Evaluate) -> None:
        """On a tree of models, every node's own model on its own data; the root's is the global one."""
        scores = self._ask(self.root.evaluation_asks(request, lambda: state.model), state.round)
        metrics = {node: self.task.metrics(sums) for node, sums in scores.sums.items()}
        self.ledger.scores(state.round, f"{OWN} {request.split}", request.share, metrics)
        self.callbacks.own(state.round, metrics, self.task.headline)

    def _decodes(self, round: int, split: str) -> bool:
        """Whether texts are generated, which takes long: on test data at the end, else as often as asked."""
        settings = self.federation.evaluate
        at_the_end = split == "test" and round == self.federation.rounds
        return at_the_end or bool(settings.decode and round % (settings.every * settings.decode) == 0)

    def _ask(self, asks: Mapping[NodeId, Request], round: int) -> Scores:
        """The sum of what nodes answer; the ledger names those that gave no scores."""
        total, failures = Scores({}), dict[NodeId, str]()
        for answer in self.root.server.link.ask(asks, deadline_of(self.federation.participation)):
            if isinstance(answer.reply, Scores) and self._sensible(answer.reply):
                total = total + answer.reply
            else:
                said = answer.reply.reason if isinstance(answer.reply, Failure) else "it sent no scores of this task"
                failures[answer.node] = said
                self.ledger.event(round, answer.node, "not evaluated", failures[answer.node])
        if len(failures) == len(asks):
            reasons = "; ".join(dict.fromkeys(failures.values()))
            if not self.root.server.link.remote:
                raise RunFailed(f"round {round}: no node could evaluate the model ({reasons})")
            # Silos may train without releasing scores: the run goes on without them.
            self.callbacks.say(f"round {round}: no silo released scores ({reasons})")
        return total

    def _sensible(self, scores: Scores) -> bool:
        """Whether metrics can be computed from them."""
        try:
            return all(self.task.metrics(sums) for sums in scores.sums.values() if sums)  # a part may be empty
        except (ArithmeticError, LookupError, ValueError):
            return False
