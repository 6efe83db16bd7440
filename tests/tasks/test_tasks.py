"""Tasks: losses compared with transformers, metrics compared with their definitions."""

import math
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from hansa.client.modes import training_mode
from hansa.config.sections import Training
from hansa.core.seeds import stream
from hansa.core.settings import Named
from hansa.data.examples import Examples
from hansa.data.source import Source
from hansa.models.tokenizer import byte_tokenizer, train_vocabulary
from hansa.tasks.base import TASKS, Vocabulary, better
from hansa.tasks.causal_lm import CausalLM
from hansa.tasks.classify import Classify
from hansa.tasks.mlm import MaskedLM

TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
ENCODERS = {
    "bert": lambda v: transformers.BertConfig(vocab_size=v, **TINY),
    "roberta": lambda v: transformers.RobertaConfig(vocab_size=v, max_position_embeddings=80, pad_token_id=0, **TINY),
    "distilbert": lambda v: transformers.DistilBertConfig(vocab_size=v, dim=32, n_layers=2, n_heads=2, hidden_dim=48),
    "albert": lambda v: transformers.AlbertConfig(vocab_size=v, embedding_size=16, **TINY),
    "electra": lambda v: transformers.ElectraConfig(vocab_size=v, embedding_size=16, **TINY),
    "modernbert": lambda v: transformers.ModernBertConfig(vocab_size=v, pad_token_id=0, **TINY),
    "deberta": lambda v: transformers.DebertaV2Config(vocab_size=v, **TINY),
}
DECODERS = {
    "gpt2": lambda v: transformers.GPT2Config(vocab_size=v, n_embd=32, n_layer=2, n_head=2),
    "llama": lambda v: transformers.LlamaConfig(vocab_size=v, **TINY),
    "gpt_neox": lambda v: transformers.GPTNeoXConfig(vocab_size=v, **TINY),
}


def examples(task: Any, vocabulary: Any, rows: Any) -> Examples:
    encoded = list(task.encode(rows, Source(train="x"), vocabulary))
    ids = [np.asarray(sample.ids, np.int32) for sample in encoded]
    return Examples(
        np.concatenate(ids),
        np.cumsum([0, *map(len, ids)]),
        np.asarray([sample.label for sample in encoded], np.int32),
        np.zeros(len(ids), np.int32),
        ("all",),
        np.concatenate([np.asarray(sample.tags, np.int32) for sample in encoded]),
    )


@pytest.fixture
def vocabulary() -> Vocabulary:
    return Vocabulary(byte_tokenizer(), 40)


ROWS = [{"text": t} for t in ("a cough", "fever and chills at night", "no pain", "the lungs are clear")]


@pytest.mark.parametrize("name", ENCODERS)
def test_masked_loss_equals_transformers_for_every_encoder(name: Any, vocabulary: Any) -> None:
    torch.manual_seed(0)
    model = transformers.AutoModelForMaskedLM.from_config(ENCODERS[name](vocabulary.size)).eval()
    task = MaskedLM()
    held = examples(task, vocabulary, ROWS)
    batch = task.batch(held, np.arange(4), stream(0, "x"), vocabulary)
    labels = torch.full_like(batch.inputs["input_ids"], -100)
    labels.view(-1)[batch.rows] = batch.targets
    theirs = model(**batch.inputs, labels=labels).loss
    torch.testing.assert_close(task.loss(model, batch), theirs, rtol=1e-4, atol=1e-5)
    task.loss(model, batch).backward()  # type: ignore[no-untyped-call]
    ours = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    model(**batch.inputs, labels=labels).loss.backward()
    for n, p in model.named_parameters():
        if p.grad is not None:
            torch.testing.assert_close(ours[n], p.grad, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("recomputed", [False, True])
@pytest.mark.parametrize("name", ["bert", "roberta", "electra", "deberta"])
def test_the_last_block_computes_rows_with_a_target_alone(name: Any, recomputed: bool, vocabulary: Any) -> None:
    """Unless its blocks are computed again in the backward pass, when hooks are gone."""
    model: Any = transformers.AutoModelForMaskedLM.from_config(ENCODERS[name](vocabulary.size)).train()
    task = MaskedLM()
    batch = task.batch(examples(task, vocabulary, ROWS), np.arange(4), stream(0, "x"), vocabulary)
    seen: list[int] = []
    for block in model.base_model.encoder.layer:
        block.intermediate.register_forward_pre_hook(lambda _, args: seen.append(args[0].shape[:-1].numel()))
    with training_mode(model, Training(gradient_checkpointing=recomputed)):
        task.loss(model, batch)
    positions = batch.inputs["input_ids"].numel()
    assert seen == [positions, positions if recomputed else len(batch.targets)]
    assert len(batch.targets) < positions / 2


@pytest.mark.parametrize("name", DECODERS)
def test_causal_loss_equals_transformers_for_every_decoder(name: Any, vocabulary: Any) -> None:
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(DECODERS[name](vocabulary.size)).eval()
    task = CausalLM()
    batch = task.batch(examples(task, vocabulary, ROWS), np.arange(4), stream(0, "x"), vocabulary)
    labels = batch.inputs["input_ids"].masked_fill(batch.inputs["attention_mask"] == 0, -100)
    theirs = model(**batch.inputs, labels=labels).loss
    torch.testing.assert_close(task.loss(model, batch), theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("text", ["лёгкие чисты, жара нет " * 9, "a  cough,\n and 咳嗽 😷 " * 9])
@pytest.mark.parametrize("tokenizer", [byte_tokenizer(), train_vocabulary({"▁cough": 9, "▁жара": 9, "▁and": 9}, 300)])
def test_bytes_are_counted_in_the_text_for_every_vocabulary(text: Any, tokenizer: Any) -> None:
    vocabulary = Vocabulary(tokenizer, 40)
    task = CausalLM()
    held = examples(task, vocabulary, [{"text": text}, {"text": "no pain"}])
    assert len(held) > 2, "the text fills several windows"
    assert held.tags.sum() == len(text.encode()) + len("no pain")
    batch = task.batch(held, np.arange(len(held)), stream(0, "x"), vocabulary)
    first = held.tags[held.offsets[:-1]].sum()  # the first token of a window is not predicted
    assert batch.bytes == held.tags.sum() - first


def test_bits_per_byte_of_a_uniform_model(vocabulary: Any) -> None:
    """Uniform over V tokens: log₂V bits for every token, including end tokens that stand for no byte."""
    task = CausalLM()
    tokens, text = 1000.0, 900.0
    sums = {"nll": tokens * math.log(vocabulary.size), "tokens": tokens, "correct": 0.0, "bytes": text}
    assert task.metrics(sums)["bits_per_byte"] == pytest.approx(math.log2(vocabulary.size) * tokens / text)
    assert "bits_per_byte" not in MaskedLM().metrics(sums)


def test_masks_have_the_published_fractions(vocabulary: Any) -> None:
    task = MaskedLM()
    held = examples(task, vocabulary, [{"text": "fever and cough and pain"}] * 3000)
    batch = task.batch(held, np.arange(3000), stream(0, "x"), vocabulary)
    assert batch.rows is not None
    shown, mask = batch.inputs["input_ids"].view(-1)[batch.rows], vocabulary.mask
    open_tokens = int((~torch.from_numpy(vocabulary.special)[torch.from_numpy(held.ids.astype(np.int64))]).sum())
    assert len(batch.rows) / open_tokens == pytest.approx(0.15, abs=0.01)
    assert float((shown == mask).float().mean()) == pytest.approx(0.8, abs=0.02)
    assert float((shown == batch.targets).float().mean()) == pytest.approx(0.1, abs=0.02)
    assert not vocabulary.special[batch.targets.numpy()].any(), "special tokens are never predicted"


def test_masks_depend_on_the_seed(vocabulary: Any) -> None:
    task = MaskedLM()
    held = examples(task, vocabulary, ROWS)
    one, two, other = (task.batch(held, np.arange(4), stream(s, "x"), vocabulary) for s in (0, 0, 1))
    assert torch.equal(one.inputs["input_ids"], two.inputs["input_ids"])
    assert not torch.equal(one.inputs["input_ids"], other.inputs["input_ids"])


def test_whole_words_are_masked_together() -> None:
    tokenizer = train_vocabulary({"▁fe": 9, "ver": 9, "▁cough": 9}, 300)
    vocabulary = Vocabulary(tokenizer, 40)
    task = MaskedLM(mask=0.3, whole_word=True)
    held = examples(task, vocabulary, [{"text": "fever cough fever cough cough fever"}] * 50)
    ids = np.stack([held[i] for i in range(50)]).astype(np.int64)
    chosen = task._choose(ids, stream(0, "x"), vocabulary)
    word = np.cumsum(vocabulary.starts[ids], axis=1)
    for row in range(50):
        for number in np.unique(word[row]):
            pieces = chosen[row][(word[row] == number) & ~vocabulary.special[ids[row]]]
            assert pieces.all() or not pieces.any()
    assert 0.15 < chosen.sum() / (~vocabulary.special[ids]).sum() < 0.45


@pytest.mark.parametrize("name", ["mlm", "causal-lm", "classify", "assertion", "relation", "pairs", "ner", "translate"])
def test_every_task_declares_the_direction_of_its_metrics(name: str) -> None:
    task = TASKS.build(Named(name=name))
    assert better(task, "loss") == "low"
    assert better(task, "accuracy") == better(task, "micro_f1") == better(task, "bleu") == "high"
    language_model = name in ("mlm", "causal-lm", "translate")
    assert better(task, "perplexity") == ("low" if language_model else "high")


def test_token_metrics() -> None:
    found = MaskedLM().metrics({"nll": 2.0 * math.log(5.0), "tokens": 2.0, "correct": 1.0})
    assert found["perplexity"] == pytest.approx(5.0)
    assert found["accuracy"] == 0.5
    assert MaskedLM().metrics({}) == {}


def test_macro_f1_is_the_mean_of_per_class_f1() -> None:
    sums = {"samples": 4.0, "correct": 2.0, "nll": 1.0}
    sums |= {
        "hit:0": 1.0,
        "guessed:0": 2.0,
        "true:0": 2.0,
        "hit:1": 1.0,
        "guessed:1": 2.0,
        "true:1": 1.0,
        "true:2": 1.0,
    }
    expected = np.mean([2 * 1 / 4, 2 * 1 / 3, 0.0])
    assert Classify().metrics(sums)["macro_f1"] == pytest.approx(expected)


def test_predictions_of_every_task(vocabulary: Any) -> None:
    torch.manual_seed(0)
    encoder, decoder = ENCODERS["bert"](vocabulary.size), DECODERS["llama"](vocabulary.size)
    masked = transformers.AutoModelForMaskedLM.from_config(encoder).eval()
    [found] = MaskedLM().predict(masked, vocabulary, "the [MASK] lung")
    assert len(found["fillings"]) == 5
    from hansa.core.errors import UserError

    with pytest.raises(UserError, match=r"write \[MASK\]"):
        MaskedLM().predict(masked, vocabulary, "no mask")
    causal = transformers.AutoModelForCausalLM.from_config(decoder).eval()
    assert "continuation" in CausalLM().predict(causal, vocabulary, "the lung")[0]
    encoder.num_labels = 2
    labelled = Vocabulary(vocabulary.tokenizer, 40, ("no", "yes"))
    classifier = transformers.AutoModelForSequenceClassification.from_config(encoder).eval()
    ranked = Classify().predict(classifier, labelled, "a cough")
    assert sum(r["probability"] for r in ranked) == pytest.approx(1.0, abs=1e-3)
