"""A silo: holds text that stays, and answers requests. What it releases is in its replies and nowhere else."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from typing import Any, cast

import numpy as np
import torch

from hansa.client.adaptive_sampling import SAMPLING, SampleFactor, adapted
from hansa.client.behind import samples_behind
from hansa.client.masking import mask_scores, mask_update, masking_client, noise_share
from hansa.client.overlap import OVERLAP, OverlapState, StepsAhead, kept_state, merge, steps_ahead
from hansa.client.personalisation import personalise
from hansa.client.private_training import train_private
from hansa.client.release_log import log_knowledge, log_update
from hansa.client.resident import PERSONAL, REFERENCE_ROUNDS, PersonalTensors, ResidentSilo
from hansa.client.silo_training import train_silo
from hansa.client.state import StoredStates
from hansa.client.training import OptimizerState, Trained
from hansa.client.unit_gradients import UnitGradients
from hansa.client.vocabulary import collect_vocabulary
from hansa.config.sections import Training
from hansa.core.compression import OutgoingUpdate, UploadState
from hansa.core.device import CPU
from hansa.core.encoding import EncodedUpdate
from hansa.core.hierarchy import SLOT, OwnModel, adopt_parent, layers_part, own_model, to_keep
from hansa.core.knowledge import Samples
from hansa.core.learner import Work
from hansa.core.messages import (
    AdvertiseKeys,
    CollectVocabulary,
    DataCard,
    DescribeData,
    Evaluate,
    Failure,
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
)
from hansa.core.schedules import schedule_factor
from hansa.core.seeds import stream
from hansa.core.tensors import NOTHING, Tensors
from hansa.data.examples import content_digest
from hansa.privacy.dp.units import UnitMechanism
from hansa.privacy.dp.updates import UpdateMechanism, UpdateNorm
from hansa.privacy.policy.guard import Behind
from hansa.privacy.secure_aggregation.client import EVALUATIONS, MaskingClient
from hansa.privacy.secure_aggregation.protocol import Refused
from hansa.tasks.base import NamedSums

log = logging.getLogger("hansa.silo")
OPTIMIZER, OBJECTIVE, UPLOAD, PRIVACY = "optimizer", "objective", "upload", "privacy"  # slots


@dataclass
class Silo:
    """Answers requests from its own data."""

    resident: ResidentSilo
    _held: ShareKnowledge | None = None  # the request whose model this round's training starts from
    _ahead: StepsAhead | None = None  # steps of the next round that are under way

    @property
    def name(self) -> NodeId:
        """The silo's name."""
        return self.resident.name

    def answer(self, request: Request) -> Reply:
        """The reply to a request; a `Failure` where the silo cannot or must not give one."""
        if self._ahead is not None and isinstance(request, ShareKnowledge | Train | Evaluate | Personalise):
            self._ahead.wait()  # the resident model is in use
        match request:
            case CollectVocabulary():
                return collect_vocabulary(self.name, self.resident.holder, self.resident.runtime, request)
            case DescribeData():
                return self._describe()
            case ShareKnowledge():
                self._held = request
                return self._share(request)
            case Train():
                whole = self._with_model(request)
                if isinstance(whole, Failure):
                    return whole
                reply = self._refused(whole) or (
                    self._train_own(whole) if whole.subtree else self.train(whole, whole.model)
                )
                self._held = None  # only now: what fails is tried once more
                return reply
            case AdvertiseKeys() | ShareSecrets() | RevealShares():
                return self._masking(request.scores).answer(request)
            case Evaluate():
                return self._evaluate(request)
            case Personalise():
                settings = self.resident.runtime.federation.personal
                if settings is None:
                    return Failure("its federation file has no 'personal' section")
                return personalise(self.resident, request, settings)
            case _:
                return self.resident.survey(request)

    # ── before the first round ────────────────────────────────────────────────────────────────────────────────────

    def _describe(self) -> DataCard:
        splits = {split: self.resident.examples(split) for split in ("train", "valid", "test")}
        samples, mechanism = len(splits["train"]), self.resident.runtime.private.get(self.name)
        used = self.resident.runtime.federation.train.per_round(samples)
        if isinstance(mechanism, UnitMechanism):
            used = mechanism.expected(samples)
        problems = tuple(dict.fromkeys(f"{split}: {p}" for split, held in splits.items() for p in held.problems))
        if self.resident.runtime.deployed:  # places and reasons stay in the silo's own log
            for problem in problems:
                log.warning("%s", problem)
            problems = tuple(f"{split}: {p}" for split, held in splits.items() for p in held.released_problems)
        return DataCard({split: held.counts() for split, held in splits.items()}, used, problems)

    # ── a round ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _with_model(self, request: Train) -> Train | Failure:
        """A model that did not travel is the one that this round's `ShareKnowledge` brought."""
        if request.knowledge is None or not request.knowledge.model_held or request.model.layout.names:
            return request
        held = self._held
        if held is None or held.round != request.round:
            return Failure(f"it no longer holds the model that came with the exchange of round {request.round}")
        return replace(request, model=held.model)

    def _share(self, request: ShareKnowledge) -> Reply:
        resident, exchange = self.resident, self.resident.method.exchange
        if exchange is None:
            return Failure(f"method '{resident.method.name}' exchanges nothing")
        samples = len(resident.examples("train"))
        if not samples:
            return Failure("it has no training samples")
        resident.load(request.round, request.model)
        learner = resident.runtime.learner
        if learner.model.training:
            learner.model.eval()
        rng = stream(resident.runtime.federation.seed, request.round, self.name, "trade")  # part of the seed: keep it
        shared = exchange.share(Work(learner, request.model, request.round), Samples(samples, resident.in_order, rng))
        if resident.runtime.federation.release_log.knowledge:
            log_knowledge(resident.home, request.round, shared, request.model)
        return shared.knowledge

    def _train_own(self, request: Train) -> Reply:
        """On a tree of models: take the parent's model into the silo's own, then train that."""
        resident, runtime = self.resident, self.resident.runtime
        hierarchy, keys = resident.method.hierarchy, runtime.keys
        if hierarchy is None:
            return Failure(f"method '{resident.method.name}' does not give every node a model of its own")
        states = resident.store.recall(request.round)
        adopted = adopt_parent(
            self.name, hierarchy, keys, states, lambda: runtime.start_of(self.name), request, leaf=True
        )
        plain = replace(request, model=adopted.model, subtree=None)
        reply = self.train(plain, request.model, lambda state: to_keep(keys, hierarchy, state, request))
        if not isinstance(reply, Update):
            return reply
        part = layers_part(adopted, self.name, self.name in runtime.private)
        return replace(reply, layers=replace(part, keys=reply.layers.keys) if reply.layers is not None else part)

    def train(self, request: Train, received: Tensors, own: Callable[[Tensors], OwnModel] | None = None) -> Reply:
        """Train from the request's model; answer with how far that led from what was ``received``.

        ``own``: on a tree of models, what of the trained model the silo keeps.
        """
        resident, runtime = self.resident, self.resident.runtime
        federation, learner, method = runtime.federation, runtime.learner, resident.method
        samples = len(resident.examples("train"))
        if not samples:
            return Failure("it has no training samples")
        states = resident.load(request.round, request.model)
        upload = states.get(UPLOAD, UploadState)
        if runtime.method.upload.keeps_local:
            restored = upload.restore_local(learner.state) if upload is not None else []
            if {*restored, *request.model.layout.names} < {*runtime.shared.names}:
                return Failure("it was sent some of the tensors only, and does not remember the others")
        training, factor = adapted(resident, request.round, states)
        work, rate = self._work(request, states), self._rate(request)
        number = request.round + REFERENCE_ROUNDS * request.reference
        if method.keeps_optimizer and not training.keep_optimizer:
            training = training.model_copy(update={"keep_optimizer": True})
        kept = states.get(OPTIMIZER, OptimizerState) if training.keep_optimizer else None
        mechanism = runtime.private.get(self.name)
        before = states.get(OVERLAP, OverlapState) if method.overlaps else None
        if before is not None:
            learner.state.write(before.model)
        taken = self._ahead.take(request.round) if self._ahead is not None and not request.reference else None
        if taken is not None:
            done, model = taken
            learner.state.write(model)
        elif isinstance(mechanism, UnitMechanism):
            held, vocabulary = resident.examples("train"), runtime.vocabulary
            units = UnitGradients(work, runtime.task, vocabulary, method.objective, training, held)
            done = train_private(units, mechanism, rate, (federation.seed, number, self.name), kept)
        else:
            done = train_silo(resident, work, training, number, rate, kept)
        if method.overlaps:
            received = merge(learner.state, before, received)
        outgoing, norm, sent = self._outgoing(request, received, upload, states)
        write_state: Callable[[], None] | None = None
        if not request.reference:
            slots = self._slots(done, factor, outgoing.kept, norm, own)
            if method.overlaps:
                names = sent.names if isinstance(sent, EncodedUpdate) else sent.layout.names
                slots[OVERLAP] = kept_state(learner.state, received, names)
            changing = (learner.state.flat, learner.grad) if method.overlaps and runtime.deployed else ()
            write_state = resident.store.prepare(request.round, slots, request.durable, changing)
            if federation.release_log.updates:
                left = sent.open(received.layout) if isinstance(sent, EncodedUpdate) else sent
                several = isinstance(mechanism, UnitMechanism)  # any of its samples may have been drawn
                drawn = np.arange(samples) if several else resident.drawn(request.round, training)
                log_update(resident.home, request.round, left, drawn, request.model)
        update = Update(NOTHING, samples, done.seen, done.steps, done.loss, done.seconds, movement=outgoing.movement)
        if work.contribution is not None:
            update = replace(update, shared_state=work.contribution.to(CPU))
        if self._masks:
            reply: Reply = self._masked(request, update, sent)
        elif isinstance(sent, EncodedUpdate):
            reply = replace(update, encoded=sent)
        else:
            reply = replace(update, gradient=runtime.rank_limit.cut(sent))
        if method.overlaps and runtime.deployed:
            reply = self._go_on(request, training, done, reply)
        if write_state is not None:
            write_state()  # while the next steps are taken, and before the reply is stored and leaves
            if self._ahead is not None:
                self._ahead.confirm(request.round)
        return reply

    def _go_on(self, request: Train, training: Training, done: Trained, reply: Reply) -> Reply:
        """Take the steps of the next round while the reply travels; return the reply, in memory of its own."""
        following = replace(request, round=request.round + 1)
        last = following.round > self.resident.runtime.federation.rounds
        if request.reference or last or not isinstance(reply, Update):
            return reply
        reply = replace(reply, gradient=reply.gradient.copy())  # it lies where the steps have their gradient
        rate = self._rate(following)
        self._ahead = steps_ahead(self.resident, training, following.round, rate, done.optimizer)
        return reply

    def _work(self, request: Train, states: StoredStates) -> Work:
        """What the objective sees of the round."""
        learner, objective = self.resident.runtime.learner, self.resident.method.objective
        state = states.get(OBJECTIVE, objective.state) if objective.state is not None else None
        shared = request.knowledge.items if request.knowledge is not None else ()
        received = request.model.only(learner.trained.names)
        return Work(learner, received, request.round, state, knowledge=shared, shared_state=request.shared_state)

    def _slots(
        self,
        done: Trained,
        factor: SampleFactor | None,
        upload: UploadState | None,
        norm: UpdateNorm | None,
        own: Callable[[Tensors], OwnModel] | None,
    ) -> dict[str, Any]:
        """The silo's state after a round, by slot; slots without state are left out."""
        learner, personal = self.resident.runtime.learner, self.resident.personal
        slots: dict[str, Any] = {
            OBJECTIVE: done.objective,
            OPTIMIZER: done.optimizer,
            SAMPLING: factor,
            UPLOAD: upload,
            PRIVACY: norm,
            SLOT: own(learner.state) if own is not None else None,
            PERSONAL: PersonalTensors(learner.state.only(personal)) if personal else None,
        }
        return {slot: state for slot, state in slots.items() if state is not None}

    def _outgoing(
        self, request: Train, received: Tensors, upload: UploadState | None, states: StoredStates
    ) -> tuple[OutgoingUpdate, UpdateNorm | None, Tensors | EncodedUpdate]:
        """What of the silo's work leaves it: the pseudo-gradient, with noise where it is private, compressed."""
        runtime, seed = self.resident.runtime, self.resident.runtime.federation.seed
        # A tensor that was not sent counts as zero: see core/downlink.py.
        if runtime.method.upload.both_ways and not runtime.method.overlaps:
            received = Tensors.zeros(runtime.shared)
            received.write(request.model)
        received = received.only(runtime.learner.trained.names)
        layout = received.layout
        model = runtime.learner.state.only(layout.names).to(CPU)
        flat = torch.sub(received.flat, model.flat, out=runtime.outgoing(layout.size))
        norm = None
        mechanism = runtime.private.get(self.name)
        if isinstance(mechanism, UpdateMechanism):  # privacy of single patients has noise in every step already
            norm = mechanism.apply(flat, states.get(PRIVACY, UpdateNorm), seed, request.round, self.name)
        if poison := runtime.federation.simulate.poison.get(self.name):
            flat.mul_(poison.times)
        outgoing = OutgoingUpdate(
            Tensors(layout, flat), model, request.round, self.name, seed, runtime.sides, runtime.embeddings, upload
        )
        return outgoing, norm, runtime.method.upload.compress(outgoing)

    def _rate(self, request: Train) -> float | Callable[[int], float]:
        """The factor on the learning rate: by rounds, or by steps where the work is a part of a sequence of steps."""
        runtime, federation, window = self.resident.runtime, self.resident.runtime.federation, request.schedule
        schedule = federation.train.schedule
        begin, total = (window.begin, window.total) if window is not None else (0, 0)
        if federation.without_rounds:
            samples = len(self.resident.examples("train"))
            steps = ceil(federation.train.per_round(samples) / federation.train.batch)
            begin, total = (request.round - 1) * steps, federation.rounds * steps
        if not total:
            often = runtime.repeats.get(self.name, 1)  # below a region with rounds of its own
            return schedule_factor(schedule, request.round, federation.rounds * often)
        return lambda step: schedule_factor(schedule, begin + step + 1, total)

    # ── secure aggregation ────────────────────────────────────────────────────────────────────────────────────────

    @property
    def _masks(self) -> bool:
        """Whether its updates leave under masks; what a region trains on data of its own stays inside the region."""
        runtime = self.resident.runtime
        if runtime.federation.secure_aggregation is None:
            return False
        node = runtime.nodes.get(self.name)
        return node is not None and not node.silos

    def _masking(self, scores: str = "") -> MaskingClient:
        resident = self.resident
        split = scores.split("-")[0] if scores in EVALUATIONS else "train"
        data, samples = content_digest(resident.holder.sources, split), len(resident.examples("train"))
        return masking_client(resident.runtime, self.name, resident.home, samples, data, scores)

    def _refused(self, request: Train) -> Failure | None:
        """Under secure aggregation, why it does not work on this request at all."""
        if not self._masks:
            return None
        try:
            self._masking().check(request)
        except Refused as why:
            return Failure(f"it refuses: {why}")
        return None

    def _masked(self, request: Train, update: Update, sent: Tensors | EncodedUpdate) -> Reply:
        """Where the federation file says so, no update leaves without a mask."""
        if isinstance(sent, EncodedUpdate) or update.shared_state is not None:
            return Failure("its method sends more than one whole update, which secure aggregation cannot mask")
        runtime = self.resident.runtime
        settings, hierarchy = runtime.federation.secure_aggregation, runtime.method.hierarchy
        assert settings is not None
        keys = runtime.keys if hierarchy is not None and hierarchy.keys_travel else None
        noise = partial(noise_share, runtime, self.name)
        return mask_update(self._masking(), request, replace(update, gradient=sent), settings, keys, noise)

    # ── evaluation ────────────────────────────────────────────────────────────────────────────────────────────────

    def _evaluate(self, request: Evaluate) -> Reply:
        runtime = self.resident.runtime
        settings = runtime.federation.secure_aggregation
        if settings is None or not settings.metrics:
            return self._scores(request)
        names = cast(NamedSums, runtime.task).sum_names(runtime.vocabulary.labels, request.decode)
        return mask_scores(self._masking(request.masked_as), request, names, self._scores)

    def _scores(self, request: Evaluate) -> Scores:
        resident = self.resident
        if not request.by_node:
            resident.load(request.round + 1, request.model)
            if request.own:
                upload = resident.store.newest().get(UPLOAD, UploadState)
                if upload is not None:
                    upload.restore_local(resident.runtime.learner.state)
            return resident.score(request.split, request.share, request.parts, request.decode)
        model = request.model if request.model.layout.names else self.own_model(request.round)
        resident.load(request.round + 1, model)
        scores = resident.score(request.split, request.share)
        return sum((Scores({self.name: sums}) for sums in scores.sums.values()), Scores({}))

    def behind(self, request: Request) -> Behind:
        """How many samples the reply to a request would stand for; the silo's policy has a least number."""
        return samples_behind(self.resident, request)

    def reach(self) -> float:
        """How far a constant gradient of norm one moves the silo's model in a round: learning rate times steps."""
        training, samples = self.resident.runtime.federation.train, len(self.resident.examples("train"))
        return training.lr * ceil(training.per_round(samples) / training.batch)

    def own_model(self, round: int) -> Tensors:
        """On a tree of models: the silo's own model after a round."""
        runtime = self.resident.runtime
        return own_model(self.resident.store.recall(round + 1), lambda: runtime.start_of(self.name))
