"""Translation: losses compared with transformers, BLEU and chrF with sacrebleu, generation, and a complete run."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from hansa import templates
from hansa.client.host import SiloHost
from hansa.client.runtime import Runtime
from hansa.config.file import parse, read
from hansa.core.errors import HansaError, UserError
from hansa.core.seeds import stream
from hansa.data.corpora import phrases
from hansa.data.examples import Encoded, Examples, Texts, Unusable
from hansa.data.rows import Row
from hansa.data.source import Source
from hansa.models.tokenizer import byte_tokenizer, train_vocabulary
from hansa.preview.preview import preview
from hansa.runs.inference import load, score
from hansa.runs.ledger import Ledger
from hansa.runs.run import run
from hansa.tasks import bleu
from hansa.tasks.base import Vocabulary
from hansa.tasks.translate import Translate, decoder_start, generate, translations

SHARED = {"pad_token_id": 0, "eos_token_id": 3, "decoder_start_token_id": 2}
LAYERS = {
    "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_position_embeddings": 64,
}  # fmt: skip
T5 = {"d_model": 32, "d_kv": 16, "d_ff": 32, "num_layers": 1, "num_heads": 2}
MODELS = {
    "marian": lambda v: transformers.MarianConfig(vocab_size=v, forced_eos_token_id=None, **LAYERS, **SHARED),
    "bart": lambda v: transformers.BartConfig(vocab_size=v, **LAYERS, **SHARED),
    "bart, forced": lambda v: transformers.BartConfig(vocab_size=v, forced_bos_token_id=2, **LAYERS, **SHARED),
    "t5": lambda v: transformers.T5Config(vocab_size=v, **T5, **SHARED),
}
PAIRS = [("ein Haus", "a house"), ("zwei alte Häuser am See", "two old houses by the lake"), ("ja", "yes")]


def build(name: Any, vocabulary: Any) -> Any:
    torch.manual_seed(0)
    return transformers.AutoModelForSeq2SeqLM.from_config(MODELS[name](vocabulary.size)).eval()


def rows(pairs: Any = PAIRS) -> Any:
    found = []
    for number, (left, right) in enumerate(pairs, 1):
        row = Row({"text": left, "target": right})
        row.place = f"a.jsonl:{number}"
        found.append(row)
    return found


def examples(task: Any, vocabulary: Any, pairs: Any = PAIRS) -> Examples:
    encoded = [e for e in task.encode(rows(pairs), Source(train="x"), vocabulary) if isinstance(e, Encoded)]
    ids = [np.asarray(sample.ids, np.int32) for sample in encoded]
    labels = np.asarray([sample.label for sample in encoded], np.int32)
    nothing = np.zeros(len(ids), np.int32)
    texts = Texts.of([sample.text for sample in encoded])
    return Examples(
        np.concatenate(ids), np.cumsum([0, *map(len, ids)]), labels, nothing, ("a",), nothing[:0], (), texts
    )


@pytest.fixture
def vocabulary() -> Vocabulary:
    return Vocabulary(byte_tokenizer(), 40)


# ── the loss ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", MODELS)
def test_the_loss_equals_transformers_for_every_encoder_decoder(name: Any, vocabulary: Any) -> None:
    model, task = build(name, vocabulary), Translate(smoothing=0.0)
    batch = task.batch(examples(task, vocabulary), np.arange(3), stream(0, "x"), vocabulary)
    labels, begin = batch.inputs["labels"], decoder_start(model)
    shown = torch.cat([torch.tensor(begin).expand(3, -1), labels[:, :-1].clamp(min=0)], dim=1)
    logits = model(
        input_ids=batch.inputs["input_ids"], attention_mask=batch.inputs["attention_mask"], decoder_input_ids=shown
    ).logits[:, len(begin) - 1 :]
    theirs = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))
    torch.testing.assert_close(task.loss(model, batch), theirs, rtol=1e-4, atol=1e-5)
    if name != "bart, forced":  # the loss of transformers ignores forced tokens
        inputs = {key: batch.inputs[key] for key in ("input_ids", "attention_mask", "labels")}
        torch.testing.assert_close(task.loss(model, batch), model(**inputs).loss, rtol=1e-4, atol=1e-5)


def test_label_smoothing_follows_its_formula_and_does_not_change_scores(vocabulary: Any) -> None:
    model, plain, smooth = build("marian", vocabulary), Translate(smoothing=0.0), Translate(smoothing=0.2)
    batch = plain.batch(examples(plain, vocabulary), np.arange(3), stream(0, "x"), vocabulary)
    inputs = {key: batch.inputs[key] for key in ("input_ids", "attention_mask", "labels")}
    chances = model(**inputs).logits.log_softmax(dim=-1).reshape(-1, vocabulary.size)[batch.rows]
    right = chances[torch.arange(len(batch.targets)), batch.targets]
    formula = -(0.8 * right + 0.2 * chances.mean(dim=-1)).mean()  # (1 − ε)·log p(y) + ε·mean over the vocabulary
    torch.testing.assert_close(smooth.loss(model, batch), formula, rtol=1e-4, atol=1e-5)
    with torch.inference_mode():
        assert smooth.score(model, batch) == plain.score(model, batch)


# ── bad pairs ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_unusable_pairs_are_reported_with_place_and_reason(vocabulary: Any) -> None:
    bad = rows([("ja", ""), ("nein", "no"), ("x" * 200, "long")])
    missing = Row({"text": "ohne"})
    missing.place = "a.jsonl:4"
    found = list(Translate().encode([*bad, missing], Source(train="x"), vocabulary))
    unusable = {one.place: one.reason for one in found if isinstance(one, Unusable)}
    assert unusable == {
        "a.jsonl:1": "its translation (field 'target') is empty or not text",
        "a.jsonl:3": "its source or target has 202 tokens, more than the 40 of a sample (data.max_length)",
        "a.jsonl:4": "no field 'target' with the translation (name it with 'target:')",
    }
    [kept] = [one for one in found if isinstance(one, Encoded)]
    assert kept.text == "no"
    assert kept.label == len("nein") + 2


def test_a_wrong_language_is_detected(vocabulary: Any) -> None:
    task, source = Translate(detect=True), Source(train="x", language="de", target_language="en")
    french = "Le patient présente une douleur intense dans la poitrine depuis trois jours déjà"
    german = "Der Patient klagt seit drei Tagen über starke Schmerzen in der Brust und Atemnot"
    [seen] = task.encode(rows([(german, french)]), source, Vocabulary(byte_tokenizer(), 200))
    assert isinstance(seen, Unusable)
    assert seen.reason.startswith("a text that should be in 'en' appears to be in another language (fr")


# ── BLEU and chrF ─────────────────────────────────────────────────────────────────────────────────────────────────

SENTENCES = st.lists(st.sampled_from(["the", "cat", "sat", "on", "a", "mat", "dog", "ran"]), max_size=9).map(" ".join)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(SENTENCES, SENTENCES.filter(bool)), min_size=1, max_size=12), st.integers(1, 4))
def test_sums_over_silos_give_the_corpus_score(pairs: Any, silos: Any) -> None:
    total: dict[str, float] = {}
    for silo in range(silos):
        own = pairs[silo::silos]
        for key, value in bleu.sums([w for w, _ in own], [r for _, r in own]).items():
            total[key] = total.get(key, 0.0) + value
    written, references = [w for w, _ in pairs], [[r for _, r in pairs]]
    assert bleu.metrics(total)["bleu"] == pytest.approx(BLEU().corpus_score(written, references).score)
    assert bleu.metrics(total)["chrf"] == pytest.approx(CHRF().corpus_score(written, references).score)


def test_means_of_silos_are_not_the_corpus_score() -> None:
    """The negative control: the corpus BLEU is not the mean of its parts."""
    parts = [
        bleu.sums(["the cat sat on the mat"], ["the cat sat on the mat"]),
        bleu.sums(["a dog"], ["the dog ran on"]),
    ]
    total = {key: parts[0][key] + parts[1][key] for key in parts[0]}
    mean = sum(bleu.metrics(part)["bleu"] for part in parts) / 2
    assert abs(bleu.metrics(total)["bleu"] - mean) > 1


def test_signatures_are_those_of_sacrebleu() -> None:
    first, second = bleu.signatures()
    assert first.startswith("BLEU nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.")
    assert second.startswith("chrF nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:2.")
    assert bleu.metrics({}) == {}


# ── generation ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("beams", [1, 3])
def test_batches_give_the_same_translations_as_single_sources(vocabulary: Any, beams: Any) -> None:
    model, task = build("marian", vocabulary), Translate()
    held = examples(task, vocabulary)
    together = translations(model, held, np.array([2, 0, 1]), vocabulary, beams, size=2)
    alone = [generate(model, [held[i][: held.labels[i]]], vocabulary, beams)[0] for i in (2, 0, 1)]
    longest = [len(held[i][: held.labels[i]]) for i in (2, 0, 1)]
    for one, other, length in zip(together, alone, longest, strict=True):
        shared = min(
            len(one), len(other), length
        )  # an untrained model does not end a text: in a batch it may be stopped earlier
        assert one[:shared] == other[:shared]


# ── a complete run ───────────────────────────────────────────────────────────────────────────────────────────────────

WORDS = {"rot": "red", "blau": "blue", "Hund": "dog", "Katze": "cat", "läuft": "runs", "schläft": "sleeps"}


def write_pairs(file: Path, count: int, language: str = "en") -> str:
    rng = stream(0, file.stem)
    found = []
    for _ in range(count):
        chosen = [list(WORDS)[i] for i in rng.integers(0, len(WORDS), int(rng.integers(2, 5)))]
        words = [WORDS[w] for w in chosen] if language == "en" else [w[::-1] for w in chosen]
        found.append({"src": " ".join(chosen), "tgt": " ".join(words)})
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in found), encoding="utf-8")
    return str(file)


def federation(folder: Path, **changes: Any) -> Any:
    languages = {"text": "src", "target": "tgt", "language": "de", "target_language": "en"}
    silos = {
        "menus": {"train": write_pairs(folder / "menus.jsonl", 60)} | languages,
        "talks": {"train": write_pairs(folder / "talks.jsonl", 40)} | languages,
    }
    raw = {
        "name": "translation",
        "task": {"name": "translate", "beams": 1},
        "tokenizer": {"size": 340, "min_count": 2},
        "data": {"max_length": 16, "valid": 0.1, "test": 0.2},
        "silos": silos,
        "rounds": 2,
        "train": {"optimizer": "adam", "lr": 2e-3, "batch": 8, "steps": 8, "schedule": "inverse-sqrt"},
        "evaluate": {"every": 1, "share": 1.0, "batch": 8},
    }
    return parse(raw | changes)


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("translation")
    return run(federation(folder), folder / "run", workers=0)


def test_a_run_reports_bleu_and_chrf_by_domain(outcome: Any) -> None:
    assert set(outcome.metrics) == {"menus", "talks"}
    for metrics in outcome.metrics.values():
        assert {"perplexity", "bleu", "chrf", "loss"} <= set(metrics)
        assert 0 <= metrics["bleu"] <= 100
    ledger = Ledger(outcome.folder)
    looked = {metric for (metric,) in ledger.select("select distinct metric from metrics where split='valid'")}
    assert "bleu" not in looked, "validation during the run uses cross-entropy only"
    assert "loss" in looked
    assert ledger.facts()["signatures"][0].startswith("BLEU nrefs:1")
    ledger.close()


def test_validation_generates_every_decode_rounds(tmp_path: Path) -> None:
    changed = federation(tmp_path, evaluate={"every": 1, "share": 1.0, "decode": 2})
    folder = run(changed, tmp_path / "run", workers=0).folder
    ledger = Ledger(folder)
    looks = [r for (r,) in ledger.select("select distinct round from metrics where split='valid' and metric='bleu'")]
    ledger.close()
    assert looks == [0, 2]


def test_the_vocabulary_has_both_languages_and_position_tables_are_not_sent(outcome: Any) -> None:
    runtime = Runtime(federation(outcome.folder.parent), outcome.folder)
    assert len(runtime.vocabulary.tokenizer("Katze", add_special_tokens=False)["input_ids"]) < 5
    assert len(runtime.vocabulary.tokenizer("sleeps", add_special_tokens=False)["input_ids"]) < 6
    named = dict(runtime.learner.model.named_parameters())
    fixed = [name for name in named if "embed_positions" in name]
    assert len(fixed) == 2
    assert not set(fixed) & set(runtime.learner.layout.names)


def test_a_finished_run_predicts_and_is_evaluated(outcome: Any) -> None:
    runtime, model = load(outcome.folder)
    [answer] = runtime.task.predict(model, runtime.vocabulary, "rot blau")
    assert isinstance(answer["translation"], str)
    with pytest.raises(UserError, match=r"the text has .* tokens, but the model was trained on 16"):
        runtime.task.predict(model, runtime.vocabulary, "rot " * 40)
    found = score(runtime, model, outcome.folder.parent / "menus.jsonl", {"text": "src", "target": "tgt"})
    assert {"bleu", "chrf"} <= set(found["menus"])


def test_one_model_for_two_target_languages(tmp_path: Path) -> None:
    sides = {"text": "src", "target": "tgt", "language": "de"}
    silos = {
        "en": {"train": write_pairs(tmp_path / "en.jsonl", 40), "target_language": "en"} | sides,
        "xx": {"train": write_pairs(tmp_path / "xx.jsonl", 40, "xx"), "target_language": "xx"} | sides,
    }
    tagged = federation(tmp_path, silos=silos, task={"name": "translate", "tag": True, "beams": 1})
    folder = run(tagged, tmp_path / "run", workers=0).folder
    runtime, model = load(folder)
    tags = [runtime.vocabulary.tokenizer.convert_tokens_to_ids(tag) for tag in (">>en<<", ">>xx<<")]
    assert len(set(tags)) == 2
    host = SiloHost(runtime)
    held = {name: host.silo(name).resident.examples("train") for name in silos}
    assert tags[0] in held["en"][0]
    assert tags[1] in held["xx"][0]
    with pytest.raises(UserError, match="this model has several target languages"):
        runtime.task.predict(model, runtime.vocabulary, "rot")
    assert runtime.task.predict(model, runtime.vocabulary, ">>xx<< rot")[0]["translation"] is not None


@pytest.mark.parametrize("name", ["bart, forced", "t5"])
def test_a_model_folder_is_used_with_its_own_tokenizer(tmp_path: Path, name: Any) -> None:
    words = byte_tokenizer()
    transformers.AutoModelForSeq2SeqLM.from_config(MODELS[name](len(words))).save_pretrained(tmp_path / "model")
    words.save_pretrained(tmp_path / "model")
    short = {"max_length": 40, "valid": 0.1, "test": 0.1}
    task = {"name": "translate", "beams": 1, "prefix": "de: "}
    settings = federation(tmp_path, model=str(tmp_path / "model"), tokenizer={}, data=short, rounds=1, task=task)
    outcome = run(settings, tmp_path / "run", workers=0)
    assert "bleu" in outcome.metrics["menus"]
    runtime, model = load(outcome.folder)
    assert "translation" in runtime.task.predict(model, runtime.vocabulary, "rot")[0]


def test_the_template_passes_the_preview_and_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phrases, "SIZES", dict.fromkeys(phrases.SIZES, 30))
    file = templates.new("translation", tmp_path / "new")
    assert [silo.name for silo in preview(read(file)).silos] == ["news", "subtitles", "talks", "manual", "menus"]
    changes = ["rounds=1", "train.steps=2", "task.beams=1", "data.max_bad_rows=1", "data.max_length=24"]
    outcome = run(read(file, changes), tmp_path / "run", workers=0)
    assert "bleu" in outcome.metrics["news"]


def test_generated_pairs_are_reproducible_and_complete() -> None:
    for domain in phrases.DOMAINS:
        [first, *_] = again = list(phrases.pairs(domain, 5, seed=3))
        assert again == list(phrases.pairs(domain, 5, seed=3))
        assert "{" not in first["src"] + first["tgt"]


def test_too_many_bad_pairs_fail_the_run_with_count_and_place(tmp_path: Path) -> None:
    settings = federation(tmp_path, tokenizer={"kind": "bytes"}, data={"max_length": 8, "valid": 0.1, "test": 0.1})
    with pytest.raises(HansaError, match=r"of 60 lines cannot be used, first .*menus\.jsonl:\d+: its source or target"):
        run(settings, tmp_path / "run", workers=0)


def test_pairs_cannot_be_deidentified_while_reading(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="a sample of task 'translate' has two"):
        run(federation(tmp_path, data={"deidentify": "rules"}), tmp_path / "run", workers=0)


def test_steps_are_divided_between_the_rounds(tmp_path: Path) -> None:
    spread = federation(tmp_path)
    assert spread.train.samples.amount(1000) == 8 // 2 * 8
    assert federation(tmp_path, rounds=4).train.samples.amount(1000) == 16, "the total does not change"
    with pytest.raises(UserError, match="8, which 3 rounds cannot share evenly"):
        federation(tmp_path, rounds=3)


def test_a_trained_vocabulary_is_lossless() -> None:
    words = train_vocabulary({"▁Häuser": 9, "▁am": 5}, 330)
    ids = words("Häuser am See", add_special_tokens=False)["input_ids"]
    assert words.decode(ids, skip_special_tokens=True) == "Häuser am See"
