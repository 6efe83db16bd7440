"""The gradient of each patient, against autograd on one sample at a time."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import nn

from hansa.client import unit_gradients
from hansa.client.unit_gradients import UnitGradients, per_sample
from hansa.config.sections import Training
from hansa.core.batch import Batch
from hansa.core.learner import Learner
from hansa.core.seeds import stream, torch_seeded
from hansa.data.arrays import Indices
from hansa.data.examples import Examples
from hansa.methods.fedavg import PlainObjective
from hansa.models.adapt import adapt
from hansa.models.settings import Lora, Model
from hansa.models.tokenizer import byte_tokenizer
from hansa.tasks.base import Task, Vocabulary
from hansa.tasks.causal_lm import CausalLM
from hansa.tasks.classify import Classify
from hansa.tasks.mlm import MaskedLM
from tests.classifiers import work_of

VOCABULARY = Vocabulary(byte_tokenizer(), 24, ("low", "high"))
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
MEMBERS = [np.array([0, 3, 5]), np.array([1]), np.array([2, 4]), np.array([6, 7, 8])]
UNITS = [(100 + n, members) for n, members in enumerate(MEMBERS)]


@dataclass(frozen=True)
class FixedMasks:
    """Masked language modelling in which the masks of a sample follow from the sample alone."""

    inner: MaskedLM

    def batch(self, examples: Examples, indices: Indices, rng: Any, vocabulary: Vocabulary) -> Batch:
        whole = self.inner.batch(examples, np.arange(len(examples)), stream(0, "fixed"), vocabulary)
        width = whole.inputs["input_ids"].shape[1]
        assert whole.rows is not None
        place = {int(index): row for row, index in enumerate(indices)}
        kept = [n for n, row in enumerate(whole.rows.tolist()) if row // width in place]
        rows = [place[int(whole.rows[n]) // width] * width + int(whole.rows[n]) % width for n in kept]
        order = np.argsort(rows)
        inputs = {name: values[torch.from_numpy(indices)] for name, values in whole.inputs.items()}
        return Batch(inputs, torch.tensor(rows)[order], whole.targets[kept][order])

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        return self.inner.loss(model, batch)


def samples() -> Examples:
    rng = stream(3, "texts")
    texts = [rng.integers(97, 122, int(rng.integers(6, 20))) for _ in range(9)]
    ids = [np.array(VOCABULARY.tokenizer(bytes(text.tolist()).decode())["input_ids"], np.int32) for text in texts]
    labels = rng.integers(0, 2, 9).astype(np.int32)
    offsets = np.cumsum([0, *map(len, ids)])
    return Examples(np.concatenate(ids), offsets, labels, np.zeros(9, np.int32), ("all",), np.concatenate(ids))


def bert(auto: str) -> nn.Module:
    config = transformers.BertConfig(vocab_size=VOCABULARY.size, max_position_embeddings=40, **SIZES, **NO_DROPOUT)
    return _built(auto, config)


def gpt2(auto: str) -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY.size, n_embd=32, n_layer=2, n_head=2, n_positions=40, attn_pdrop=0.0, embd_pdrop=0.0,
        resid_pdrop=0.0, pad_token_id=VOCABULARY.pad,
    )  # fmt: skip
    return _built(auto, config)


def llama(auto: str) -> nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY.size, tie_word_embeddings=True, pad_token_id=VOCABULARY.pad, **SIZES
    )
    return _built(auto, config)


def _built(auto: str, config: Any) -> nn.Module:
    config.num_labels = 2
    with torch_seeded(0, "model"):
        built: nn.Module = getattr(transformers, auto).from_config(config)
    return built


CASES: dict[str, tuple[Callable[[str], nn.Module], Any, Any, bool]] = {
    "encoder, whole": (bert, Classify(("low", "high")), "full", False),
    "encoder, all but embeddings": (bert, Classify(("low", "high")), "frozen-embeddings", False),
    "encoder, masked": (
        bert,
        FixedMasks(MaskedLM(mask=0.5)),
        "full",
        False,
    ),  # tied weights, and a head that sees some rows only
    "encoder, adapters": (bert, Classify(("low", "high")), "lora", True),
    "encoder, head": (bert, Classify(("low", "high")), "frozen", True),
    "decoder, whole": (gpt2, CausalLM(), "full", False),  # tied weights, learned positions, Conv1D
    "decoder with rotary positions, whole": (llama, CausalLM(), "full", False),
    "decoder with rotary positions, adapters": (llama, CausalLM(), "lora", False),
    "decoder that classifies, adapters": (llama, Classify(("low", "high")), "lora", True),
}


def prepared(model: nn.Module, task: Any, batch: int = 16) -> UnitGradients:
    learner = Learner(model)
    learner.model.train()
    return UnitGradients(work_of(learner), task, VOCABULARY, PlainObjective(), Training(batch=batch), samples())


def one_at_a_time(units: UnitGradients, task: Task, members: Indices) -> torch.Tensor:
    """The sum over samples, written down independently: one sample, one backward pass, no padding."""
    learner, total, targets = units.work.learner, torch.zeros_like(units.work.learner.flat), 0
    for index in members:
        batch = task.batch(units.held, np.array([index]), stream(0), VOCABULARY)
        learner.grad.zero_()
        task.loss(learner.model, batch).backward()  # type: ignore[no-untyped-call]
        total += len(batch.targets) * learner.grad  # of all targets of the sample
        targets += len(batch.targets)
    return total * len(members) / targets


@pytest.mark.parametrize("case", CASES)
def test_the_gradient_of_a_patient_is_the_sum_over_its_samples(case: str) -> None:
    build, task, how, fast = CASES[case]
    units = prepared(
        adapt(
            build(task.inner.auto if isinstance(task, FixedMasks) else task.auto),
            Model(preset="mini", adapt=how, lora=Lora(rank=2) if how == "lora" else Lora()),
            0,
        ),
        task,
    )
    if how == "lora":  # adapters start at zero, where half of their gradients vanish
        with torch.no_grad():
            units.work.learner.flat.add_(
                0.05 * torch.randn(units.work.learner.flat.shape, generator=torch.Generator().manual_seed(1))
            )
    expected = [one_at_a_time(units, task, members) for members in MEMBERS]
    units.together = per_sample(units.work.learner.model)
    assert (units.together is not None) == (how in ("lora", "frozen") and build is not gpt2)
    used: list[int] = []
    if units.together is not None:
        inner = units.together.of

        def counted(*arguments: Any) -> Any:
            found = inner(*arguments)
            used.extend([] if found is None else [len(found)])
            return found

        units.together.of = counted  # type: ignore[assignment, method-assign]
    found = [gradient.clone() for gradient in units.of(UNITS, 1)]
    assert bool(used) == fast, "Opacus where it is exact, and only there"
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=2e-5 * float(theirs.abs().max()))
    assert not torch.allclose(found[0], found[3], rtol=1e-2)
    if units.together is not None:
        units.together.close()
        assert not any(hasattr(p, "grad_sample") for p in units.work.learner.model.parameters())


def test_a_mean_over_a_batch_of_patients_would_be_wrong() -> None:
    """Negative control: a share of the loss of a common batch depends on the other patients."""
    task = Classify(("low", "high"))
    units = prepared(bert(task.auto), task)
    together = task.batch(units.held, np.concatenate(MEMBERS), stream(0), VOCABULARY)
    units.work.learner.grad.zero_()
    task.loss(units.work.learner.model, together).backward()  # type: ignore[no-untyped-call]
    whole = sum(one_at_a_time(units, task, members) for members in MEMBERS)
    assert isinstance(whole, torch.Tensor)
    units.work.learner.grad.zero_()
    task.loss(units.work.learner.model, together).backward()  # type: ignore[no-untyped-call]
    mean = units.work.learner.grad.clone()
    torch.testing.assert_close(9 * mean, whole, rtol=1e-3, atol=1e-5)
    assert not torch.allclose(mean, whole, rtol=0.1)


def test_layers_that_opacus_gets_wrong_are_done_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Position embeddings have batch dimension one: with all layers allowed, the check of shapes and sums finds it."""
    monkeypatch.setattr(unit_gradients, "SMALL_PART", 1.0)
    monkeypatch.setattr(unit_gradients, "LAYERS", (nn.Linear, nn.LayerNorm, nn.Embedding))
    task = Classify(("low", "high"))
    units = prepared(bert(task.auto), task)
    expected = [one_at_a_time(units, task, members) for members in MEMBERS]
    units.together = per_sample(units.work.learner.model)
    assert units.together is not None
    assert units.together.of(units, UNITS, 1) is None
    for ours, theirs in zip(units.of(UNITS, 1), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)
    assert units.together is None


def test_masks_and_dropout_of_a_patient_do_not_depend_on_the_others() -> None:
    config = transformers.BertConfig(vocab_size=VOCABULARY.size, max_position_embeddings=40, **SIZES)
    task = MaskedLM()
    units = prepared(_built(task.auto, config), task)
    alone = [gradient.clone() for gradient in units.of(UNITS[2:3], 7)]
    among = [gradient.clone() for gradient in units.of(UNITS, 7)]
    assert torch.equal(alone[0], among[2])
    other = [gradient.clone() for gradient in units.of(UNITS[2:3], 8)]
    assert not torch.equal(alone[0], other[0])


def test_a_patient_with_many_samples_goes_through_the_model_in_parts() -> None:
    task = Classify(("low", "high"))
    whole, parts = (prepared(bert(task.auto), task, batch=size) for size in (16, 2))
    everything = [(1, np.arange(9))]
    [one], [two] = ([g.clone() for g in units.of(everything, 1)] for units in (whole, parts))
    torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-5)
