"""What the silos of one process share: the tokenizer, the task, the method and one resident model.

A worker of a pool, a test and a hospital's agent each have one `Runtime`. It is built from the federation file and the
run folder, and loads each thing when it is first needed.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from hansa.client.low_rank import RankLimit
from hansa.client.packing import check_packing
from hansa.client.processes import Crew, Group, ProcessLost, processes_of, sharded
from hansa.client.sharding import PartsLearner, divide
from hansa.config.federation import Federation
from hansa.config.method import build_method
from hansa.config.nodes import Node, repeats, walk
from hansa.config.plugins import load_plugins
from hansa.core import representations
from hansa.core.device import CPU
from hansa.core.errors import ConfigError
from hansa.core.factors import FactorNames
from hansa.core.hierarchy import KeyLayers
from hansa.core.knowledge import Sizes
from hansa.core.learner import Learner
from hansa.core.method import Method
from hansa.core.model_parts import parts, sides
from hansa.core.seeds import derive
from hansa.core.tensors import Layout, Tensors
from hansa.models import build, tokenizer
from hansa.models.adapt import adapt, carried, factor_names
from hansa.models.base import ADAPTER, BASE, load_start
from hansa.models.outputs import keep_outputs
from hansa.privacy.dp.distributed import DistributedMechanism, distributed_mechanism
from hansa.privacy.dp.prices import UpdateNoise, update_mechanisms
from hansa.privacy.dp.units import UnitMechanism
from hansa.privacy.secure_aggregation.announcement import AnnouncementSigner
from hansa.privacy.secure_aggregation.limits import MaskingLimits
from hansa.tasks.base import TASKS, ChatTask, LabelledTask, Task, Vocabulary

MODEL_FILES = (
    "model",
    "config.json",
    "generation_config.json",
    ADAPTER,
    BASE,
)  # how their names begin; the rest is words and labels


class Runtime:
    """The shared resources of one process; ``signer``: between organisations, signs what silos announce.

    ``limits``: of a silo's own policy on masked sums, beside those of the federation file; ``deployed``: requests come
    from another organisation, as they do wherever there is a signer.
    """

    def __init__(
        self,
        federation: Federation,
        folder: Path,
        signer: AnnouncementSigner | None = None,
        device: torch.device = CPU,
        limits: MaskingLimits | None = None,
        deployed: bool = False,
    ) -> None:
        self.federation, self.folder, self.signer, self.device = federation, folder, signer, device
        self.limits, self.deployed = limits, deployed or signer is not None
        self._first: Tensors | None = None  # on a frozen base: the values that the resident model started with
        self.crew: Crew | None = None  # further processes that compute gradients, once they are started
        self.group: Group | None = None  # of such a further process, where the model is in parts
        self.for_silos = False  # whether silos are trained here, so that `train.shard` applies
        self._resident: Learner | None = None
        self.outbox: Tensor | None = None  # memory that the link lends for the next update
        load_plugins(federation.plugins)

    @cached_property
    def task(self) -> Task:
        """The task of the federation file."""
        return TASKS.build(self.federation.task)

    @cached_property
    def method(self) -> Method:
        """The method of the federation file."""
        return build_method(self.federation)

    @cached_property
    def nodes(self) -> dict[str, Node]:
        """Every node below the root, by name."""
        return dict(walk(self.federation.silos))

    def method_of(self, name: str) -> Method:
        """The method by a node's own settings."""
        node = self.nodes.get(name)
        return self.method if node is None else build_method(self.federation, node)

    @cached_property
    def private(self) -> dict[str, UpdateNoise]:
        """Silo → the mechanism on its updates, or on the sum of all updates, for silos with differential privacy."""
        return update_mechanisms(self.federation)

    @cached_property
    def distributed(self) -> DistributedMechanism | None:
        """The mechanism on the sum of the updates; None if the federation file asks for none."""
        return distributed_mechanism(self.federation)

    def unit_field(self, name: str) -> str:
        """The field that names the patient or document of a silo's row, where that is what privacy protects."""
        mechanism = self.private.get(name)
        return mechanism.field if isinstance(mechanism, UnitMechanism) else ""

    @cached_property
    def repeats(self) -> dict[str, int]:
        """How many rounds each node has in one round of the root."""
        return repeats(self.federation.silos)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The tokenizer and the labels."""
        start = self.folder / "start"
        labels = json.loads((start / "labels.json").read_text(encoding="utf-8"))
        self._check_labels(tuple(labels))
        types = json.loads((start / "config.json").read_text()).get("type_vocab_size", 0)
        words = tokenizer.load(str(start))
        if isinstance(self.task, ChatTask) and self.task.template:
            words.chat_template = self.task.template  # so that exported models have it
        return Vocabulary(words, self.federation.data.max_length, tuple(labels), types)

    def _check_labels(self, labels: tuple[str, ...]) -> None:
        """Raise `ConfigError` if a coordinator's model has labels that the federation file does not list.

        The counts of a silo's samples would tell which of them its rows have.
        """
        listed = cast(LabelledTask, self.task).labels if self.task.needs_labels else ()
        if self.deployed and listed and sorted(labels) != sorted(cast(LabelledTask, self.task).classes(listed)):
            raise ConfigError("the labels of the initial model are not those that task.labels lists")

    @cached_property
    def fingerprint(self) -> str:
        """What token ids depend on beside the data: the tokenizer, the labels, the task's settings."""
        files = sorted(f for f in (self.folder / "start").iterdir() if not f.name.startswith(MODEL_FILES))
        named, data = self.federation.task, self.federation.data
        settings = json.dumps([named.name, named.settings, data.max_length])
        return str(derive(0, *(f.read_bytes().hex() for f in files), settings))

    @property
    def learner(self) -> Learner:
        """The resident model. Its shared values are overwritten by every request."""
        if self.in_parts and self.crew is not None and not self.crew.complete:
            self.crew.stop()
            self._forget_parts()
        if self._resident is None:
            self._resident = self._in_parts() if self.in_parts else self.fresh(self.device)
            if self._on_base or self.in_parts:
                self._first = self._resident.state.to(CPU).copy() if self.group is None else None
        return self._resident

    # ── several processes ─────────────────────────────────────────────────────────────────────────────────────────

    @property
    def in_parts(self) -> bool:
        """Whether the processes of a silo hold the resident model in parts."""
        return self.group is not None or (self.for_silos and sharded(self.federation.train))

    def _in_parts(self) -> Learner:
        """The part of the model that this process holds. One process after another loads it whole."""
        group = self.group or self._crew_of(processes_of(self.federation.train)).group
        learner: Learner | None = None
        for turn in range(group.size):
            if turn == group.rank:
                learner = self._part(group)
            group.barrier()
        assert learner is not None
        return learner

    def _part(self, group: Group) -> Learner:
        start = self.folder / "start"
        model = self.base() if self._on_base else build.load(str(start), self.task.auto)
        adapted = adapt(model, self.federation.model, self.federation.seed)
        if self._on_base:
            load_start(adapted, start)
        if self.federation.model.trains_most:
            return PartsLearner(adapted, self.device, group)
        travels = carried(adapted)
        divide(
            adapted, group, self.device, [p for n, p in adapted.named_parameters() if p.requires_grad or n in travels]
        )
        return Learner(adapted, self.device, travels)

    def _crew_of(self, size: int) -> Crew:
        """The running processes, started if they are not there."""
        crew = self.crew
        if crew is None or len(crew.members) + 1 != size or not crew.complete:
            if crew is not None:
                crew.stop()
            crew = self.crew = Crew(self.federation, self.folder, self.device, size, self.in_parts)
        return crew

    @contextmanager
    def together(self, kind: str, silo: str, **given: Any) -> Iterator[Group]:
        """Have the silo's other processes do the same, from the values of the resident model; see `Crew.command`.

        Raises `ProcessLost` if one of them ends; all are stopped then, so that another attempt starts anew.
        """
        if self.group is not None:  # this is one of the others
            yield self.group
            return
        learner = self.learner
        crew = self._crew_of(processes_of(self.federation.train))
        try:
            crew.command(kind, silo, **given)
            if isinstance(learner, PartsLearner):
                learner.hand_out()
            else:
                crew.group.broadcast(learner.state.flat)
            yield crew.group
        except Exception as error:
            ended = crew.stop()  # also where this process failed: the others wait in the middle of a step
            if self.in_parts:
                self._forget_parts()
            if ended and isinstance(error, RuntimeError | OSError):  # what gloo and pipes raise
                raise ProcessLost(f"{ended}; all of them are started anew") from None
            raise

    def _forget_parts(self) -> None:
        """Forget this process's part of a model whose other parts are gone."""
        self.crew = self._resident = None
        for name in ("packed_length", "rank_limit"):  # what was found out with that model
            self.__dict__.pop(name, None)

    @property
    def _on_base(self) -> bool:
        """Whether the run is on a frozen base, which the start does not have."""
        return (self.folder / "start" / BASE).is_file()

    @cached_property
    def packed_length(self) -> int:
        """Tokens in a row of packed samples; raises `ConfigError` if the model cannot keep them apart."""
        check_packing(self.learner.model)
        return self.federation.data.max_length

    @cached_property
    def sizes(self) -> Sizes:
        """What exchanged knowledge is checked by."""
        embedding, pooled = representations.widths(self.learner.model)
        return Sizes(embedding, pooled, len(self.vocabulary.labels), self.federation.data.max_length)

    @cached_property
    def start(self) -> Tensors:
        """The values every silo starts from: what personal tensors are before a silo has its own."""
        if not self._on_base and not self.in_parts:
            return self.fresh().state
        if self._first is None:  # the base is loaded once: it may fill most of the memory
            _ = self.learner
        assert self._first is not None
        return self._first

    @cached_property
    def shared(self) -> Layout:
        """The tensors in the method's scope."""
        layout = self.learner.layout
        return layout.only(self.method.scope.shared(layout, self.parts))

    @cached_property
    def parts(self) -> dict[str, str]:
        """Tensor → the part of the model that it belongs to."""
        return parts(self.learner.model)

    @cached_property
    def sides(self) -> dict[str, str]:
        """Tensor → encoder, decoder or model."""
        return sides(self.learner.model)

    @cached_property
    def factors(self) -> tuple[FactorNames, ...]:
        """The adapted layers that have a residual beside the adapter."""
        return factor_names(self.learner.layout.names)

    @cached_property
    def rank_limit(self) -> RankLimit:
        """Holds silos to the rank of their own adapters."""
        return RankLimit(self.learner, self.factors)

    @cached_property
    def embeddings(self) -> frozenset[str]:
        """Tensors that are tables of embeddings."""
        return frozenset(name for name, part in self.parts.items() if part == "embeddings")

    @cached_property
    def keys(self) -> KeyLayers:
        """On a tree of models: the key layers of the resident model."""
        layout, hierarchy = self.learner.layout, self.method.hierarchy
        return KeyLayers(layout, hierarchy.keys({n: self.parts[n] for n in layout.names}) if hierarchy else {})

    def start_of(self, name: str) -> Tensors:
        """Where a node's own model starts: on a tree of models, a node may bring weights of its own."""
        node = self.nodes.get(name)
        if node is None or node.model is None:
            return self.start
        model = build.load(str(node.model.path), self.task.auto)
        return self._learner(model, CPU).state

    def fresh(self, device: torch.device = CPU) -> Learner:
        """The common start, ready to be trained."""
        start = self.folder / "start"
        if self._on_base:
            return self._learner(self.base(device), device, start)
        return self._learner(build.load(str(start), self.task.auto), device)

    def base(self, device: torch.device = CPU, quantized: bool = True) -> Any:
        """The frozen base, from this machine's copy; ``quantized``: as the settings say."""
        settings = self.federation.model
        if not quantized:
            settings = settings.model_copy(update={"quantize": None})
        labels = self.vocabulary.labels
        return build.base(settings, self.task.auto, labels, self.federation.seed, device)

    def _learner(self, model: Any, device: torch.device, start: Path | None = None) -> Learner:
        """A model with adapters and the like; ``start``: where the values are that a base does not have."""
        adapted = adapt(model, self.federation.model, self.federation.seed)
        if start is not None:
            load_start(adapted, start)
            if self.federation.model.keep_outputs:
                keep_outputs(adapted, self.federation.model)
        return Learner(adapted, device, carried(adapted))

    def outgoing(self, size: int) -> Tensor:
        """Memory for an update of so many values: the link's own if it lends enough, else a scratch buffer."""
        lent = self.outbox
        return lent[:size] if lent is not None and lent.numel() >= size else self.learner.scratch(size)

    def part_of(self, tensor: str) -> str:
        """The part of the model that a tensor belongs to."""
        return self.parts[tensor]
