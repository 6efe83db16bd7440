"""One silo's data and model in this process: its samples, and the resident model with the silo's own values in it."""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from hansa.client.evaluation import evaluate
from hansa.client.packing import pack
from hansa.client.runtime import Runtime
from hansa.client.sampling import draw
from hansa.client.state import StateFolder, StoredStates
from hansa.client.survey import SurveyedSilo
from hansa.client.training import MicroBatches
from hansa.config.nodes import Holder
from hansa.config.sections import Training
from hansa.core.batch import Batch
from hansa.core.knowledge import Indices
from hansa.core.messages import Failure, NodeId, Scores
from hansa.core.method import Method
from hansa.core.seeds import stream
from hansa.core.survey_messages import SurveyReply, SurveyRequest
from hansa.core.tensors import Tensors
from hansa.data import examples
from hansa.data.arrays import counted
from hansa.data.batching import batches
from hansa.files import atomically
from hansa.models.peft_folder import save_model

MOST_PREFETCHED = 10_000  # samples of a round whose batches are made ahead
REFERENCE_ROUNDS = 1_000_000  # reference updates use batches of rounds that never come
PERSONAL = "scope"  # slot of the tensors that are not shared


@dataclass(frozen=True)
class PersonalTensors:
    """State of the scope slot: the values of the tensors that never leave the silo."""

    values: Tensors


@dataclass
class ResidentSilo:
    """A silo's samples and its view of the resident model."""

    name: NodeId
    holder: Holder
    runtime: Runtime
    store: StateFolder
    _examples: dict[str, examples.Examples] = field(default_factory=dict)
    _prefetched: tuple[int, Training, list[MicroBatches]] | None = None  # the batches of a round, made ahead

    @property
    def home(self) -> Path:
        """The folder of what is the silo's own."""
        return self.store.folder.parent

    def survey(self, request: SurveyRequest) -> SurveyReply | Failure:
        """The reply to a request of a survey."""
        return SurveyedSilo(self.name, self.holder, self.runtime, self.home).answer(request)

    @cached_property
    def method(self) -> Method:
        """The method by the silo's own settings."""
        return self.runtime.method_of(self.name)

    @cached_property
    def personal(self) -> list[str]:
        """The tensors that are not shared."""
        layout = self.runtime.learner.layout
        shared = set(self.method.scope.shared(layout, self.runtime.parts))
        return [name for name in layout.names if name not in shared]

    # ── samples ───────────────────────────────────────────────────────────────────────────────────────────────────

    def examples(self, split: str) -> examples.Examples:
        """The samples of a split: tokenised by the first process that asks, mapped from the cache by the others."""
        if split not in self._examples:
            runtime = self.runtime
            groups = [source.group(self.name) for source in self.holder.sources]
            self._examples[split] = examples.load(
                self.holder.sources,
                split,
                runtime.federation.data,
                groups,
                lambda some, source: runtime.task.encode(some, source, runtime.vocabulary),
                runtime.fingerprint,
                runtime.unit_field(self.name) if split == "train" else "",
            )
        return self._examples[split]

    def batches(self, round: int, training: Training) -> Iterator[MicroBatches]:
        """The batches of a round, each as micro-batches."""
        made, self._prefetched = self._prefetched, None
        if made is not None and made[0] == round and made[1] is training:
            yield from made[2]
            return
        runtime, held = self.runtime, self.examples("train")
        rng = stream(runtime.federation.seed, round, self.name, "batches")
        chosen = self.drawn(round, training, rng)
        for indices in batches(chosen, held.lengths, training.batch, rng, training.by_length):
            cuts = range(0, len(indices), training.micro_batch or len(indices))
            parts = [runtime.task.batch(held, indices[i : i + cuts.step], rng, runtime.vocabulary) for i in cuts]
            yield [pack(part, runtime.packed_length) for part in parts] if training.packing else parts

    def prefetch(self, round: int, training: Training) -> None:
        """Make the batches of a round now, for the next call of `batches`; not if they would take much memory."""
        if training.per_round(len(self.examples("train"))) <= MOST_PREFETCHED:
            self._prefetched = (round, training, list(self.batches(round, training)))

    def drawn(self, round: int, training: Training, rng: np.random.Generator | None = None) -> Indices:
        """The training samples of a round."""
        seed, size = self.runtime.federation.seed, len(self.examples("train"))
        rng = rng or stream(seed, round, self.name, "batches")
        return draw(training, size, rng, seed, round, self.name)

    def in_order(self) -> Iterator[tuple[Indices, Batch]]:
        """Every training sample once, in batches of similar length."""
        held, runtime = self.examples("train"), self.runtime
        rng = stream(runtime.federation.seed, self.name, "in order")
        for indices in batches(counted(len(held)), held.lengths, runtime.federation.evaluate.batch, None):
            yield indices, runtime.task.batch(held, indices, rng, runtime.vocabulary).to(runtime.device)

    # ── the model ─────────────────────────────────────────────────────────────────────────────────────────────────

    def load(self, round: int, shared: Tensors) -> StoredStates:
        """Put the received tensors and this silo's own into the resident model; return the silo's state."""
        states, node = self.store.recall(round), self.runtime.nodes.get(self.name)
        self.runtime.rank_limit.rank = node.rank if node is not None else None
        self.runtime.learner.state.write(shared)
        self.restore_personal(states)
        return states

    def restore_personal(self, states: StoredStates) -> None:
        """Put the silo's own values of the tensors that are not shared into the resident model."""
        if not self.personal:
            return
        kept = states.get(PERSONAL, PersonalTensors)
        values = kept.values if kept is not None else self.runtime.start.only(self.personal)
        self.runtime.learner.state.write(values)

    def score(self, split: str, share: float, parts: int = 1, decode: bool = False, draws: int = 1) -> Scores:
        """How the resident model does on a split, as it is now."""
        runtime, held = self.runtime, self.examples(split)
        batch, seed = runtime.federation.evaluate.batch, runtime.federation.seed
        model, task, vocabulary = runtime.learner.model, runtime.task, runtime.vocabulary
        asked = {"split": split, "share": share, "parts": parts, "decode": decode, "draws": draws}
        with runtime.together("score", self.name, **asked) if runtime.in_parts else nullcontext():
            return evaluate(model, task, held, vocabulary, seed, share, batch, parts, decode, draws)

    def export(self) -> None:
        """Write the resident model as a Hugging Face or PEFT folder of the silo's own."""
        with atomically(self.home / "model") as draft:
            save_model(self.runtime.learner.model, self.runtime.federation.model, draft)
            self.runtime.vocabulary.tokenizer.save_pretrained(draft)
