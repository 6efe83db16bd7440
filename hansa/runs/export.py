"""The models that a run leaves behind, as Hugging Face or PEFT folders with model cards."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hansa.client.host import SiloHost
from hansa.client.silo import UPLOAD
from hansa.config.nodes import leaves
from hansa.core.compression import UploadState
from hansa.core.messages import DataCard, NodeId
from hansa.core.state import ServerState
from hansa.files import atomically
from hansa.models.peft_folder import save_model
from hansa.runs.directory import RunDirectory
from hansa.runs.ledger import OWN, Ledger
from hansa.runs.model_card import model_card
from hansa.runs.topology import own_models


@dataclass(frozen=True)
class Exporter:
    """Writes the final models of a run. ``remote``: silos keep what is their own in other organisations."""

    host: SiloHost
    directory: RunDirectory
    cards: Mapping[NodeId, DataCard]
    ledger: Ledger
    remote: bool

    def save(self, state: ServerState) -> None:
        """The shared model; and beside it the silos' own where they have them."""
        learner = self.host.runtime.learner
        learner.state.write(state.model)
        if state.model.layout.names:
            self._export(self.directory.model, "", self.ledger.final())
        if self.remote:
            return
        if self.host.runtime.method.hierarchy is not None:
            self._save_own(state.round)
        elif len(state.model.layout.names) < len(learner.layout.names) or self.host.runtime.method.upload.keeps_local:
            self._save_personal(state)

    def _save_personal(self, state: ServerState) -> None:
        """The shared tensors together with those that a silo keeps to itself."""
        learner = self.host.runtime.learner
        for name in leaves(self.host.runtime.federation.silos):
            if (self.directory.path / "silos" / name / "personal.json").exists():
                continue  # the silo has chosen its model: this run was resumed after that
            resident = self.host.silo(name).resident
            states = resident.store.newest()
            learner.state.write(state.model)
            upload = states.get(UPLOAD, UploadState)
            if upload is not None:
                upload.restore_local(learner.state)
            resident.restore_personal(states)
            self._export(self.directory.path / "silos" / name / "model", name, self.ledger.final())

    def _save_own(self, round: int) -> None:
        """On a tree of models, every node's own model, as a folder of its own."""
        scores = self.ledger.final(f"{OWN} test")
        for name, model in own_models(self.host, self.host.runtime.federation.silos, round):
            self.host.runtime.learner.state.write(model)
            own = {name: scores[name]} if name in scores else {}
            self._export(self.directory.path / "silos" / name / "model", name, own)

    def _export(self, folder: Path, silo: str, metrics: Mapping[str, Mapping[str, float]]) -> None:
        with atomically(folder) as draft:
            runtime = self.host.runtime
            save_model(runtime.learner.model, runtime.federation.model, draft)
            runtime.vocabulary.tokenizer.save_pretrained(draft)
            self.card(draft, silo, metrics)
            mode = (draft / "README.md").stat().st_mode
            for weights in draft.glob("*.safetensors"):  # its library lets nobody but the owner read them
                weights.chmod(mode)

    def card(self, folder: Path, silo: str, metrics: Mapping[str, Mapping[str, float]]) -> None:
        """Write the model card of a folder: the shared model's, or a ``silo``'s."""
        by_silo = {} if silo else self.ledger.final_by_silo()
        facts, federation = self.ledger.facts(), self.host.runtime.federation
        card = model_card(federation, self.host.runtime.task, self.cards, metrics, by_silo, facts, silo)
        (folder / "README.md").write_text(card, encoding="utf-8")
