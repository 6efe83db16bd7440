"""Where silos live: one process's tokeniser, task, method and resident model, shared by all silos that run in it.

A worker of a pool, a test and a hospital's agent all hold a `Runtime`; it is built from the federation file and a folder
with the model's configuration and the tokeniser, and loads each part when it is first needed.
"""

import json
from functools import cached_property
from pathlib import Path

import torch

from hansa.client.silo import Silo
from hansa.client.state import StateStore
from hansa.config.federation import Federation
from hansa.config.method import build_method
from hansa.config.nodes import leaves, walk
from hansa.config.plugins import load_plugins
from hansa.config.tree import holders
from hansa.core import model_parts as parts
from hansa.core import representations as inside
from hansa.core.device import CPU
from hansa.core.exchange import Sizes
from hansa.core.hierarchy import KeyLayers
from hansa.core.learner import Learner
from hansa.core.method import Method
from hansa.core.seeds import derive
from hansa.core.tensors import Layout, Tensors
from hansa.models import build, tokenizer
from hansa.models.adapt import adapt
from hansa.privacy.policy.guard import Answer, guarded
from hansa.privacy.secure_aggregation.announcement import AnnouncementSigner
from hansa.tasks.base import TASKS, Task, Vocabulary

MODEL_FILES = ("model", "config.json", "generation_config.json")  # how their names begin; the rest is words and labels


class Runtime:
    def __init__(
        self,
        federation: Federation,
        folder: Path,
        signer: AnnouncementSigner | None = None,
        device: torch.device = CPU,
    ) -> None:
        self.federation, self.folder, self.signer, self.device = federation, folder, signer, device
        load_plugins(federation.plugins)
        self._holders = holders(federation)
        self._silos: dict[str, Silo] = {}
        self._answers: dict[str, Answer] = {}

    @cached_property
    def task(self) -> Task:
        return TASKS.build(self.federation.task)

    @cached_property
    def method(self) -> Method:
        return build_method(self.federation)

    def method_of(self, name: str) -> Method:
        """The method by a node's own settings."""
        node = dict(walk(self.federation.silos)).get(name)
        return self.method if node is None else build_method(self.federation, node)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        start = self.folder / "start"
        labels = json.loads((start / "labels.json").read_text(encoding="utf-8"))
        types = json.loads((start / "config.json").read_text()).get("type_vocab_size", 0)
        return Vocabulary(tokenizer.load(str(start)), self.federation.data.max_length, tuple(labels), types)

    @cached_property
    def fingerprint(self) -> str:
        """What token ids depend on beside the data: the tokeniser, the labels, the task's settings."""
        files = sorted(f for f in (self.folder / "start").iterdir() if not f.name.startswith(MODEL_FILES))
        named, data = self.federation.task, self.federation.data
        settings = json.dumps([named.name, named.settings, data.max_length])
        return str(derive(0, *(f.read_bytes().hex() for f in files), settings))

    @cached_property
    def learner(self) -> Learner:
        """The resident model. Its shared values are overwritten by every request."""
        return self.fresh(self.device)

    @cached_property
    def sizes(self) -> Sizes:
        """What offers of an exchange are held against."""
        embedding, pooled = inside.widths(self.learner.model)
        return Sizes(embedding, pooled, len(self.vocabulary.labels), self.federation.data.max_length)

    @cached_property
    def start(self) -> Tensors:
        """The values every silo starts from: what personal tensors are before a silo has its own."""
        return self.fresh().state

    @cached_property
    def shared(self) -> Layout:
        """The tensors in the method's scope."""
        layout = self.learner.layout
        return layout.only(self.method.scope.shared(layout, self.parts))

    @cached_property
    def parts(self) -> dict[str, str]:
        return parts.parts(self.learner.model)

    @cached_property
    def sides(self) -> dict[str, str]:
        return parts.sides(self.learner.model)

    @cached_property
    def embeddings(self) -> frozenset[str]:
        return frozenset(name for name, part in self.parts.items() if part == "embeddings")

    @cached_property
    def keys(self) -> KeyLayers:
        """On a tree: the key layers of the resident model."""
        layout, tree = self.learner.layout, self.method.tree
        named = parts.parts(self.learner.model)
        return KeyLayers(layout, tree.keys({name: named[name] for name in layout.names}) if tree else {})

    def start_of(self, name: str) -> Tensors:
        """Where a node's own model starts: on a tree, a node may bring weights of its own."""
        node = dict(walk(self.federation.silos)).get(name)
        if node is None or node.model is None:
            return self.start
        model = build.load(str(node.model.path), self.task.auto)
        return Learner(adapt(model, self.federation.model, self.federation.seed)).state

    def fresh(self, device: torch.device = CPU) -> Learner:
        """The common start, ready to be trained."""
        model = build.load(str(self.folder / "start"), self.task.auto)
        return Learner(adapt(model, self.federation.model, self.federation.seed), device)

    def silo(self, name: str) -> Silo:
        if name not in self._silos:
            memory = StateStore(self.folder / "silos" / name / "memory")
            self._silos[name] = Silo(name, self._holders[name], self, memory)
        return self._silos[name]

    def answer(self, name: str) -> Answer:
        """How a silo answers those who ask: within its policy, where it has one. What a region asks of its own data
        does not leave it."""
        if name not in self._answers:
            answer = self.silo(name).answer
            self._answers[name] = self.guarded(name, answer) if name in leaves(self.federation.silos) else answer
        return self._answers[name]

    def guarded(self, name: str, answer: Answer) -> Answer:
        return guarded(name, self.federation, self.folder, answer, self.part_of)

    def part_of(self, tensor: str) -> str:
        return self._parts[tensor]

    @cached_property
    def _parts(self) -> dict[str, str]:
        return parts.parts(self.learner.model)
