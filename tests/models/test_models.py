"""Model parts, presets, and tokenizers built from counts."""

from collections import Counter
from typing import Any

import pytest
import transformers
from hypothesis import given
from hypothesis import strategies as st

from hansa.core.model_parts import matching, parts
from hansa.data.units import UnitCounts
from hansa.models.build import preset
from hansa.models.tokenizer import Document, byte_tokenizer, count_pieces, starts_word, train_vocabulary
from tests.tasks.test_tasks import DECODERS, ENCODERS, TINY

TEXTS = ["Chronic kidney disease, stage 3", "慢性腎臓病のある患者", "Хроническая болезнь почек", "مرض الكلى المزمن"]


@pytest.mark.parametrize("name", [*ENCODERS, *DECODERS])
def test_every_parameter_has_a_part_and_blocks_are_counted(name: Any) -> None:
    if name in ENCODERS:
        model = transformers.AutoModelForMaskedLM.from_config(ENCODERS[name](300))
    else:
        model = transformers.AutoModelForCausalLM.from_config(DECODERS[name](300))
    found = parts(model)
    assert set(found) == {n for n, _ in model.named_parameters()}
    kinds = set(found.values())
    assert "embeddings" in kinds
    blocks = {k for k in kinds if k.startswith("block.")}
    assert blocks == ({"block.0"} if name == "albert" else {"block.0", "block.1"}), "ALBERT shares one block"
    assert len(matching(model, ["block.0"])) > 4
    table = model.get_input_embeddings().weight
    [name_of_table] = [n for n, p in model.named_parameters() if p is table]
    assert found[name_of_table] == "embeddings"


@pytest.mark.parametrize("family", ["t5", "bart", "marian"])
def test_encoder_and_decoder_parts_are_found(family: Any) -> None:
    config = {
        "t5": transformers.T5Config(vocab_size=300, d_model=32, d_ff=48, num_layers=2, num_heads=2, d_kv=16),
        "bart": transformers.BartConfig(
            vocab_size=300, d_model=32, encoder_layers=2, decoder_layers=3, encoder_attention_heads=2,
            decoder_attention_heads=2, encoder_ffn_dim=48, decoder_ffn_dim=48,
        ),
        "marian": transformers.MarianConfig(
            vocab_size=300, d_model=32, encoder_layers=2, decoder_layers=3, encoder_attention_heads=2,
            decoder_attention_heads=2, encoder_ffn_dim=48, decoder_ffn_dim=48, pad_token_id=0,
        ),
    }[family]  # fmt: skip
    model = transformers.AutoModelForSeq2SeqLM.from_config(config)
    kinds = set(parts(model).values())
    assert {"encoder.block.0", "encoder.block.1", "decoder.block.0", "decoder.block.1", "embeddings"} <= kinds
    encoder, decoder = set(matching(model, ["encoder"])), set(matching(model, ["decoder"]))
    assert encoder
    assert decoder
    assert not encoder & decoder


def test_the_head_of_a_classifier_is_found() -> None:
    model = transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=300, **TINY))
    assert {n for n, p in parts(model).items() if p == "head"} == {"classifier.weight", "classifier.bias"}


@pytest.mark.parametrize("auto", ["AutoModelForMaskedLM", "AutoModelForCausalLM", "AutoModelForSeq2SeqLM"])
@pytest.mark.parametrize("size", ["tiny", "small"])
def test_presets_build_without_download(auto: Any, size: Any) -> None:
    model = preset(size, auto, byte_tokenizer(), 32)
    assert 100_000 < sum(p.numel() for p in model.parameters()) < 20_000_000


def rows(texts: list[str]) -> list[Document]:
    """Every text is a row, and every row a unit."""
    return [(None, [text]) for text in texts]


@given(st.lists(st.text(max_size=40), max_size=5))
def test_a_federated_vocabulary_is_lossless(extra: Any) -> None:
    tokenizer = train_vocabulary(count_pieces(rows(TEXTS * 5), 5)[0], 420)
    import unicodedata

    for text in [*TEXTS, *extra]:
        normal = unicodedata.normalize("NFC", text)
        special = set(tokenizer.all_special_tokens) | {"▁"}
        if any(token in normal for token in special):
            continue
        back = tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True)
        assert back == normal.removeprefix(" ") or back == normal


def test_rare_words_are_withheld() -> None:
    texts = ["fever and cough"] * 5 + ["Mrs Antonella Quattrocchi has fever"]
    released, withheld = count_pieces(rows(texts), 5)
    assert "▁fever" in released
    assert not any("Antonella" in piece or "Quattrocchi" in piece for piece in released)
    assert withheld == 4


def test_a_word_that_one_row_or_one_patient_repeats_is_withheld() -> None:
    """The control counts occurrences, as before: the surname leaves."""
    texts = ["fever"] * 5 + ["Quattrocchi " * 5]
    released, _ = count_pieces(rows(texts), 5)
    assert released == {"▁fever": 5}
    occurrences = Counter(piece for text in texts for piece in text.split())
    assert occurrences["Quattrocchi"] >= 5
    notes: list[Document] = [("patient 1", ["Quattrocchi has fever"])] * 9 + [(n, ["fever"]) for n in range(4)]
    assert count_pieces(notes, 5)[0] == {"▁fever": 5}, "the notes of one patient are one unit"
    assert "▁Quattrocchi" in count_pieces([(None, texts) for _, texts in notes], 5)[0], "the control: rows as units"


@given(
    st.lists(st.tuples(st.sampled_from([None, "a", "b"]), st.lists(st.sampled_from("xyz"), max_size=4)), max_size=12),
    st.integers(1, 4),
)
def test_units_are_counted_once(rows: Any, floor: int) -> None:
    counts = UnitCounts()
    for unit, items in rows:
        counts.add(items, unit)
    units: dict[str, set[Any]] = {}
    for number, (unit, items) in enumerate(rows):
        for item in items:
            units.setdefault(item, set()).add(number if unit is None else unit)
    assert counts.at_least(floor) == {i: len(found) for i, found in units.items() if len(found) >= floor}
    assert len(counts) == len(units)


def test_a_vocabulary_depends_only_on_counts() -> None:
    counts = count_pieces(rows(TEXTS * 5), 1)[0]
    one = train_vocabulary(counts, 400).get_vocab()
    two = train_vocabulary(dict(reversed(counts.items())), 400).get_vocab()
    assert one == two


def test_word_starts() -> None:
    tokenizer = train_vocabulary({"▁fever": 9, "cough": 9}, 300)
    starts = starts_word(tokenizer)
    assert starts[tokenizer.get_vocab()["▁fever"]]
    assert not starts[tokenizer.get_vocab()["cough"]]
