"""TODO docstring."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from math import ceil, inf, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import torch

from hansa.client import release_log as record
from hansa.client.adaptive_sampling import next_factor
from hansa.client.evaluation import evaluate
from hansa.client.personalisation import overall, personalise
from hansa.client.sampling import draw
from hansa.client.state import StateStore
from hansa.client.training import Parts, train
from hansa.config.nodes import Holder, repeats
from hansa.config.sections import Training
from hansa.config.tree import protected
from hansa.core.batch import Batch
from hansa.core.compression import OutgoingUpdate, restore_local
from hansa.core.device import CPU
from hansa.core.encoding import EncodedUpdate
from hansa.core.errors import DataError
from hansa.core.exchange import Indices, Samples
from hansa.core.hierarchy import MODEL, fit_leaf
from hansa.core.learner import Work
from hansa.core.messages import (
    AdvertiseKeys,
    CollectVocabulary,
    DataCard,
    DescribeData,
    Evaluate,
    Failure,
    Fit,
    NodeId,
    Personalise,
    Reply,
    Request,
    RevealShares,
    Scores,
    ShareKnowledge,
    ShareSecrets,
    Train,
    Update,
    VocabularyCounts,
)
from hansa.core.method import Method
from hansa.core.schedules import schedule_factor
from hansa.core.seeds import stream, torch_seeded
from hansa.core.tensors import NOTHING, Tensors, is_finite
from hansa.data import examples
from hansa.data.batching import batches
from hansa.data.readers import Problems, rows
from hansa.files import atomically
from hansa.models.adapt import merged
from hansa.models.tokenizer import count_pieces
from hansa.privacy.dp.updates import NORM, protect
from hansa.privacy.secure_aggregation.client import MaskingClient
from hansa.privacy.secure_aggregation.protocol import Refused
from hansa.tasks.base import Labelled, texts_of

if TYPE_CHECKING:
    from hansa.client.runtime import Runtime


PERSONAL = "personal"
LABELS = 50  # so many different ones are believed, however few rows there are
PROBES = 1_000_000  # batches of rounds that never come: a probe must not go over what was just learned
WATCHED = "validation"  # what a silo remembers of its validation loss


class Silo:
    """Holds text that stays. All it ever says is in its replies."""

    def __init__(self, name: NodeId, node: Holder, runtime: "Runtime", memory: StateStore) -> None:
        self.name, self.node, self.runtime, self.memory = name, node, runtime, memory
        self._examples: dict[str, examples.Examples] = {}
        self._held: ShareKnowledge | None = None  # whose model this round's training starts from

    def answer(self, request: Request) -> Reply:
        match request:
            case CollectVocabulary():
                return self._survey(request)
            case DescribeData():
                return self._describe()
            case ShareKnowledge():
                self._held = request
                return self._trade(request)
            case Train():
                whole = self._with_model(request)
                if isinstance(whole, Failure):
                    return whole
                reply = self._checked(whole) or self.train(whole, whole.model)
                self._held = None  # only now: what fails is tried once more
                return reply
            case Fit():
                return fit_leaf(self, request)
            case AdvertiseKeys() | ShareSecrets() | RevealShares():
                return self._veil.answer(request)
            case Evaluate():
                return self._evaluate(request)
            case Personalise():
                settings = self.runtime.federation.personal
                return (
                    personalise(self, request, settings) if settings else Failure("its file has no 'personal' section")
                )

    def _survey(self, request: CollectVocabulary) -> VocabularyCounts:
        problems, data, task = Problems(), self.runtime.federation.data, self.runtime.task
        texts_in, labels, seen = texts_of(task), set[str](), 0

        def texts() -> Iterator[str]:
            """One by one: all of a silo's text may be more than its memory."""
            nonlocal seen
            for source in self.node.sources:
                for row in rows(source, "train", data, problems):
                    seen += 1
                    if request.labels:
                        labels.update(cast(Labelled, task).labels_in(row, source))
                    if request.pieces:
                        yield from texts_in(row, source)
                problems.check(data.max_bad_rows, source.train)

        pieces, withheld = count_pieces(texts(), request.pieces)
        if len(labels) > max(LABELS, seen // 2):
            raise DataError(
                f"silos.{self.name}: {len(labels)} different labels in {seen} rows are text, which does not leave; "
                "name the right field with 'label:', or list the labels in task.labels"
            )
        return VocabularyCounts(pieces, tuple(sorted(labels)), withheld)

    def _describe(self) -> DataCard:
        splits = {split: self.examples(split) for split in ("train", "valid", "test")}
        used = self.runtime.federation.train.per_round(len(splits["train"]))
        problems = tuple(dict.fromkeys(f"{split}: {p}" for split, held in splits.items() for p in held.problems))
        return DataCard({split: held.counts() for split, held in splits.items()}, used, problems)

    def _with_model(self, request: Train) -> Train | Failure:
        """A model that stayed behind on the wire is the one that this round's trade brought."""
        if not request.held or request.model.layout.names:
            return request
        held = self._held
        if held is None or held.round != request.round:
            return Failure(f"it no longer holds the model that came with the trade of round {request.round}")
        return replace(request, model=held.model)

    def _trade(self, request: ShareKnowledge) -> Reply:
        runtime, held = self.runtime, self.examples("train")
        if self.method.exchange is None:
            return Failure(f"method '{self.method.name}' exchanges nothing")
        if not len(held):
            return Failure("it has no training samples")
        memory = self.load(request.round, request.model)
        if runtime.learner.model.training:
            runtime.learner.model.eval()
        work = Work(runtime.learner, request.model, request.round, memory)
        rng = stream(runtime.federation.seed, request.round, self.name, "trade")
        told = self.method.exchange.offer(work, Samples(len(held), self._in_order, rng))
        if runtime.federation.record.offers:
            record.offer(self.home, request.round, told, request.model)
        return told.offer

    def _in_order(self) -> Iterator[tuple[Indices, Batch]]:
        """Every training sample once, in batches of similar length."""
        held, settings = self.examples("train"), self.runtime.federation
        rng = stream(settings.seed, self.name, "in order")
        for indices in batches(np.arange(len(held)), held.lengths, settings.evaluate.batch, None):
            yield indices, self.runtime.task.batch(held, indices, rng, self.runtime.vocabulary).to(self.runtime.device)

    def train(
        self, request: Train, received: Tensors, remember: Callable[[Tensors], dict[str, torch.Tensor]] | None = None
    ) -> Reply:
        """Work from the request's model; answer with how far that led from what was ``received``."""
        runtime, federation = self.runtime, self.runtime.federation
        held = self.examples("train")
        if not len(held):
            return Failure("it has no training samples")
        learner = runtime.learner
        memory = self.load(request.round, request.model)
        if runtime.method.upload.keeps_local:
            own = restore_local(learner.state, memory)
            if {*own, *request.model.layout.names} < {*runtime.shared.names}:
                return Failure("it was sent some of the tensors only, and does not remember the others")
        training, watched = self._amount(request.round, memory)
        work = Work(learner, request.model, request.round, memory, offers=request.offers)
        batches = self.batches(request.round + PROBES * request.probe, training)
        with torch_seeded(federation.seed, request.round, self.name, "dropout"):
            done = train(work, runtime.task, self.method.objective, training, batches, self._rate(request))
        leaving, sent = self._leave(request, received, memory)
        kept = done.memory | watched | leaving.kept | (remember(learner.state) if remember else {})
        if self._personal:
            kept = kept | {f"{PERSONAL}.{name}": learner.state[name] for name in self._personal}
        if not request.probe:
            self.memory.keep(request.round, kept, request.durable)
        if federation.record.updates and not request.probe:
            left = sent.open(request.model.layout) if isinstance(sent, EncodedUpdate) else sent
            record.update(self.home, request.round, left, self._drawn(request.round, training), request.model)
        update = Update(NOTHING, len(held), done.seen, done.steps, done.loss, done.seconds, moved=leaving.moved)
        if isinstance(sent, EncodedUpdate):
            return replace(update, coded=sent)
        return self._masked(request, update, sent) if federation.secure_aggregation else replace(update, gradient=sent)

    def _checked(self, request: Train) -> Failure | None:
        """Under masks, why it does not work on this at all."""
        if self.runtime.federation.secure_aggregation is None:
            return None
        try:
            self._veil.check(request)
        except Refused as why:
            return Failure(f"it refuses: {why}")
        return None

    def _masked(self, request: Train, update: Update, sent: Tensors) -> Reply:
        """Where the federation says that updates meet under masks, none leaves without."""
        assert self.runtime.federation.secure_aggregation is not None
        if not is_finite(sent.flat):  # under a mask nobody could see it
            return Failure("its update has values that are not finite (NaN or Inf)")
        try:
            masked, cut = self._veil.cover(
                request, sent, self.runtime.method.weighting, self.runtime.federation.secure_aggregation.bound
            )
        except Refused as why:
            return Failure(f"it refuses: {why}")
        return replace(update, gradient=masked, masked=True, cut=cut)

    @property
    def _veil(self) -> MaskingClient:
        runtime = self.runtime
        return MaskingClient(self.name, runtime.federation.name, self.home, len(self.examples("train")), runtime.signer)

    def _leave(
        self, request: Train, received: Tensors, memory: dict[str, torch.Tensor]
    ) -> tuple[OutgoingUpdate, Tensors | EncodedUpdate]:
        """What of the silo's work leaves it, and what it remembers for that."""
        runtime = self.runtime
        if runtime.method.upload.both:  # a tensor that was not sent counts as zero: see links/narrow.py
            received = Tensors.zeros(runtime.shared)
            received.write(request.model)
        layout = received.layout
        state = runtime.learner.state.only(layout.names).to(CPU)
        flat = torch.sub(received.flat, state.flat, out=runtime.learner.spare(layout.size))
        kept, seed = {}, runtime.federation.seed
        privacy = protected(runtime.federation).get(self.name)
        if privacy is not None:
            kept[NORM] = flat.norm()
            protect(flat, privacy, memory, seed, request.round, self.name)
        if poison := runtime.federation.simulate.poison.get(self.name):
            flat.mul_(poison.times)
        leaving = OutgoingUpdate(
            Tensors(layout, flat),
            state,
            request.round,
            self.name,
            seed,
            runtime.sides,
            runtime.embeddings,
            memory,
            kept,
        )
        return leaving, runtime.method.upload.leave(leaving)

    def _rate(self, request: Train) -> float | Callable[[int], float]:
        """How the learning rate goes: by rounds, or on a tree by the sequential steps of all of it."""
        federation, begin, total = self.runtime.federation, request.begin, request.total
        schedule = federation.train.schedule
        if federation.without_rounds:
            steps = ceil(federation.train.per_round(len(self.examples("train"))) / federation.train.batch)
            begin, total = (request.round - 1) * steps, federation.rounds * steps
        if not total:
            often = repeats(federation.silos).get(self.name, 1)  # below a region with rounds of its own
            return schedule_factor(schedule, request.round, federation.rounds * often)
        return lambda step: schedule_factor(schedule, begin + step + 1, total)

    def _evaluate(self, request: Evaluate) -> Scores:
        if not request.by_node:
            self.load(request.round + 1, request.model)
            if request.own:
                restore_local(self.runtime.learner.state, self.memory.newest())
            return self.score(request.split, request.share, request.parts, request.decode)
        self.load(request.round + 1, request.model if request.model.layout.names else self.model(request.round))
        scores = self.score(request.split, request.share)
        return sum((Scores({self.name: sums}) for sums in scores.sums.values()), Scores({}))

    def model(self, round: int) -> Tensors:
        """On a tree: its own model after a round."""
        memory = self.memory.recall(round + 1)
        return (
            Tensors(self.runtime.learner.layout, memory[MODEL]) if MODEL in memory else self.runtime.start_of(self.name)
        )

    def _amount(self, round: int, memory: dict[str, torch.Tensor]) -> tuple[Training, dict[str, torch.Tensor]]:
        """This round's training, and what to remember of the validation loss that its amount follows (stability.py)."""
        training = self.runtime.federation.train
        settings = training.samples.adapt
        if settings is None:
            return training, {}
        factor, before, last = memory[WATCHED].tolist() if WATCHED in memory else (1.0, inf, -inf)
        if round - last >= settings.every:  # a silo that is not in every cohort looks when its turn comes
            now = overall(self.runtime.task, self.score("valid", 1.0))["loss"]
            factor = next_factor(factor, before, now, settings) if isfinite(before) else factor
            before, last = now, float(round)
        samples = training.samples.scaled(factor)
        return training.model_copy(update={"samples": samples}), {WATCHED: torch.tensor([factor, before, last])}

    def score(self, split: str, share: float, parts: int = 1, decode: bool = False, draws: int = 1) -> Scores:
        """How the resident model does, as it is now."""
        runtime, held = self.runtime, self.examples(split)
        batch, seed = runtime.federation.evaluate.batch, runtime.federation.seed
        return evaluate(
            runtime.learner.model, runtime.task, held, runtime.vocabulary, seed, share, batch, parts, decode, draws
        )

    def examples(self, split: str) -> examples.Examples:
        """The samples of a split: tokenised by whoever asks first, mapped from the cache by everyone else."""
        if split not in self._examples:
            runtime = self.runtime
            names = [source.group(self.name) for source in self.node.sources]
            self._examples[split] = examples.load(
                self.node.sources,
                split,
                runtime.federation.data,
                names,
                lambda some, source: runtime.task.encode(some, source, runtime.vocabulary),
                runtime.fingerprint,
            )
        return self._examples[split]

    def load(self, round: int, shared: Tensors) -> dict[str, torch.Tensor]:
        """Put the received tensors and this silo's own into the resident model; return what it remembers."""
        memory = self.memory.recall(round)
        learner = self.runtime.learner
        learner.state.write(shared)
        for name in self._personal:
            own = memory.get(f"{PERSONAL}.{name}")
            learner.state[name].copy_(own if own is not None else self.runtime.start[name])
        return memory

    @property
    def home(self) -> Path:
        """Where the silo keeps what is its own."""
        return self.memory.folder.parent

    def export(self) -> None:
        """The resident model as a plain Hugging Face folder of the silo's own."""
        with atomically(self.home / "model") as draft:
            merged(self.runtime.learner.model).save_pretrained(draft)
            self.runtime.vocabulary.tokenizer.save_pretrained(draft)

    @cached_property
    def method(self) -> Method:
        return self.runtime.method_of(self.name)

    @cached_property
    def _personal(self) -> list[str]:
        layout = self.runtime.learner.layout
        shared = set(self.method.scope.shared(layout, self.runtime.parts))
        return [name for name in layout.names if name not in shared]

    def batches(self, round: int, training: Training) -> Iterator[Parts]:
        runtime, held = self.runtime, self.examples("train")
        rng = stream(runtime.federation.seed, round, self.name, "batches")
        chosen = self._drawn(round, training, rng)
        for indices in batches(chosen, held.lengths, training.batch, rng):
            cuts = range(0, len(indices), training.micro_batch or len(indices))
            yield [runtime.task.batch(held, indices[i : i + cuts.step], rng, runtime.vocabulary) for i in cuts]

    def _drawn(self, round: int, training: Training, rng: np.random.Generator | None = None) -> Indices:
        """The training samples of a round."""
        seed, size = self.runtime.federation.seed, len(self.examples("train"))
        rng = rng or stream(seed, round, self.name, "batches")
        return draw(training, size, rng, seed, round, self.name)
