"""Annotated rows in every format, their samples and metrics, and how invalid rows are reported."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers

from hansa.core.errors import DataError
from hansa.core.seeds import stream
from hansa.core.settings import Named
from hansa.data import examples
from hansa.data.examples import Encoded, Unusable
from hansa.data.formats.annotated import BadRow, mark, mentions, pairs, words_and_tags
from hansa.data.rows import Problems, Row
from hansa.data.settings import Data
from hansa.data.source import Source
from hansa.data.splits import rows
from hansa.models.tokenizer import byte_tokenizer
from hansa.tasks.base import TASKS, Vocabulary
from hansa.tasks.classify import Classify, marked_mentions, marked_pairs
from hansa.tasks.tag import NO_TAG, Tag

WHOLE = Data(valid=0.0, test=0.0)
TEXT = "No fever, but pneumonia."
LABELS = ("O", "B-Sign", "I-Sign", "B-Disease", "I-Disease")
EXPECTED = [("No", "O"), ("fever", "B-Sign"), (",", "O"), ("but", "O"), ("pneumonia", "B-Disease"), (".", "O")]


def read(path: Any, **fields: Any) -> Any:
    return list(rows(Source(train=str(path), **fields), "train", WHOLE, Problems()))


def usable(found: Iterable[Encoded | Unusable]) -> list[Encoded]:
    """The samples, none of which may be unusable."""
    samples = []
    for one in found:
        assert isinstance(one, Encoded), one
        samples.append(one)
    return samples


def entity(start: Any, end: Any, kind: Any, assertion: str = "present") -> Any:
    return {"span": [start, end], "type": kind, "assertion": assertion}


def as_tokens(path: Any) -> Any:
    words, tags = zip(*EXPECTED, strict=True)
    path.write_text(json.dumps({"tokens": words, "tags": tags}))
    return path


def as_conll(path: Any) -> Any:
    path.write_text("-DOCSTART- O\n\n" + "\n".join(f"{w} X {t}" for w, t in EXPECTED) + "\n\n")
    return path


def as_spans(path: Any) -> Any:
    spans = [{"start": 3, "end": 8, "label": "Sign"}, {"start": 14, "end": 23, "label": "Disease"}]
    path.write_text(json.dumps({"text": TEXT, "spans": spans}))
    return path


def as_brat(path: Any) -> Any:
    path.with_suffix(".txt").write_text(TEXT)
    path.with_suffix(".ann").write_text(
        "T1\tSign 3 8\tfever\nT2\tDisease 14 23\tpneumonia\nA1\tAssertion T1 absent\nA2\tAssertion T2 present\n"
        "R1\tcauses Arg1:T2 Arg2:T1\n#1\tAnnotatorNotes T1\ta remark\n"
    )
    return path.with_suffix(".txt")


@pytest.mark.parametrize(
    ("write", "name"), [(as_tokens, "a.jsonl"), (as_conll, "a.conll"), (as_spans, "b.jsonl"), (as_brat, "doc.txt")]
)
def test_every_format_gives_the_same_words_and_tags(write: Any, name: Any, tmp_path: Path) -> None:
    [row] = read(write(tmp_path / name))
    assert list(zip(*words_and_tags(row), strict=True)) == EXPECTED


def test_brat_gives_assertions_and_relations(tmp_path: Path) -> None:
    [row] = read(as_brat(tmp_path / "doc.txt"))
    assert [e["assertion"] for e in row["entities"]] == ["absent", "present"]
    found = {(h.type, t.type): kind for h, t, kind in pairs(row, "label")}
    assert found == {("Disease", "Sign"): "causes", ("Sign", "Disease"): "NONE"}


def test_a_brat_document_with_an_unreadable_line_is_left_out(tmp_path: Path) -> None:
    """Without the line the annotation would be wrong: here, the fever would lose its assertion 'absent'."""
    good, bad = as_brat(tmp_path / "good.txt"), as_brat(tmp_path / "invalid.txt").with_suffix(".ann")
    bad.write_text(bad.read_text().replace("A1\tAssertion T1 absent", "A1\tAssertion"))
    problems = Problems()
    found = list(rows_of(tmp_path, problems))
    assert [row.place for row in found] == [str(good)]
    assert (problems.lines, problems.bad) == (2, 1)
    assert f"{bad}:3: not a BRAT annotation of this text, so its document is left out" in problems.first[0]


BAD = {
    "triple": ({"text": "abc", "entities": [{"span": [0, 1, 2], "type": "Sign"}]}, "not a pair of character offsets"),
    "words": ({"text": "abc", "entities": [{"span": ["0", "1"], "type": "Sign"}]}, "not a pair of character offsets"),
    "blank": ({"text": "a  b", "entities": [{"span": [1, 3], "type": "Sign"}]}, "contains no word"),
    "no tags": ({"tokens": ["a"], "iob": ["O"]}, "name the field with the tags with 'tags:' (fields: tokens, iob"),
    "numbers": ({"tokens": ["a"], "tags": [0]}, "its tags are numbers"),
    "lists": ({"tokens": ["a"], "tags": "O"}, "are not two lists"),
    "tags": ({"tokens": ["a", "b"], "tags": ["O"]}, "2 tokens but 1 tags"),
    "tag": ({"tokens": ["a"], "tags": ["Disease"]}, "a tag that is not BIO"),
    "range": ({"text": "abc", "entities": [entity(1, 9, "Sign")]}, "does not lie in the text, which has 3"),
    "overlap": ({"text": "abc def", "entities": [entity(0, 5, "Sign"), entity(4, 7, "Sign")]}, "overlap"),
    "untyped": ({"text": "abc", "entities": [{"span": [0, 1]}]}, "has no 'type'"),
    "unknown": ({"tokens": ["a"], "tags": ["B-Planet"]}, "an entity type that is not one of Sign, Disease"),
    "nothing": ({"text": "abc"}, "neither 'tokens' and 'tags' nor"),
}


@pytest.mark.parametrize("name", BAD)
def test_an_invalid_row_is_reported_with_its_place(name: Any, tmp_path: Path) -> None:
    row, reason = BAD[name]
    good = {"text": TEXT, "entities": [entity(3, 8, "Sign")]}
    file = tmp_path / "a.jsonl"
    file.write_text("".join(json.dumps(r) + "\n" for r in (good, row)))
    vocabulary = Vocabulary(byte_tokenizer(), 40, LABELS)
    found = list(Tag().encode(read(file), Source(train=str(file)), vocabulary))
    [bad] = [f for f in found if isinstance(f, Unusable)]
    assert bad.place == f"{file}:2"
    assert reason in bad.reason

    def load(allowed: Any) -> Any:
        data = WHOLE.model_copy(update={"max_bad_rows": allowed})
        encode = lambda some, s: Tag().encode(some, s, vocabulary)  # noqa: E731
        return examples.load([Source(train=str(file))], "train", data, ["x"], encode, "f")

    assert "1 of 2 lines left out, first" in load(0.6).problems[0]
    with pytest.raises(DataError, match="1 of 2 lines cannot be used"):
        load(0.01)


def test_long_sentences_are_split_between_words_and_outside_entities() -> None:
    vocabulary = Vocabulary(byte_tokenizer(), 18, LABELS)
    words = ["aa", "bb", "cccc", "dddd", "ee", "ff", "gg"]
    tags = ["O", "O", "B-Sign", "I-Sign", "O", "O", "O"]
    found = usable(Tag().encode([Row({"tokens": words, "tags": tags, "text": ""})], Source(train="x"), vocabulary))
    assert len(found) > 1
    assert all(len(s.ids) <= 18 and len(s.ids) == len(s.tags) for s in found)
    marked = [[LABELS[t] for t in s.tags if t != NO_TAG] for s in found]
    assert [tag for sample in marked for tag in sample] == tags, "nothing is lost"
    assert all(not sample[0].startswith("I-") for sample in marked), "no entity is split"


def test_truncation_keeps_marked_mentions() -> None:
    vocabulary = Vocabulary(byte_tokenizer(), 40, ("absent", "present"))
    text = "x " * 60 + "no fever at all" + " y" * 60
    row = Row({"text": text, "start": 123, "end": 128, "label": "absent"})
    [sample] = usable(Classify((), marked_mentions).encode([row], Source(train="x"), vocabulary))
    assert len(sample.ids) <= 40
    assert "@ fever @" in vocabulary.tokenizer.decode(sample.ids)


def test_pairs_have_a_relation_or_none() -> None:
    row = Row({"text": "abc def ghi", "entities": [entity(0, 3, "A"), entity(4, 7, "B"), entity(8, 11, "C")]})
    row["relations"] = [{"head": 2, "tail": 0, "type": "of"}]
    found = {(h.type, t.type): kind for h, t, kind in pairs(row, "label")}
    assert len(found) == 6
    assert {pair for pair, kind in found.items() if kind != "NONE"} == {("C", "A")}, "direction counts"
    row["relations"] = [{"head": 7, "tail": 0, "type": "of"}]
    with pytest.raises(BadRow, match="refers to an entity that does not exist: the row has 3"):
        list(pairs(row, "label"))
    head, tail, _ = next(
        pairs(Row({"text": "abc", "h_start": 0, "h_end": 1, "t_start": 2, "t_end": 3, "label": "x"}), "label")
    )
    assert mark("abc", head, tail)[0] == "@ a @b# c #"


@pytest.mark.parametrize(
    ("relation", "reason"),
    [
        ({"head": 0, "tail": 0, "type": "of"}, "connects entity 0 with itself"),
        ({"head": 0, "tail": 1}, "no field 'type'"),
        ({"head": 0, "tail": 1, "type": None}, "no field 'type'"),
    ],
)
def test_a_relation_needs_two_ends_and_a_type(relation: Any, reason: Any) -> None:
    row = Row({"text": "abc def", "entities": [entity(0, 3, "A"), entity(4, 7, "B")], "relations": [relation]})
    with pytest.raises(BadRow, match=reason):
        list(pairs(row, "label"))


def test_an_assertion_that_is_null_is_missing() -> None:
    row = Row({"text": "abc", "entities": [entity(0, 3, "A") | {"assertion": None}]})
    with pytest.raises(BadRow, match="has no 'assertion'"):
        list(mentions(row, "label"))


def test_the_negative_class_is_named_in_the_settings() -> None:
    task = TASKS.build(Named.model_validate({"name": "relation", "labels": ["of"], "negative": "nothing"}))
    assert isinstance(task, Classify)
    row = Row({"text": "abc def", "entities": [entity(0, 3, "A"), entity(4, 7, "B")]})
    row["relations"] = [{"head": 0, "tail": 1, "type": "of"}]
    assert task.labels == ("of", "nothing"), "it is added to the labels"
    vocabulary = Vocabulary(byte_tokenizer(), 40, task.labels)
    found = usable(task.encode([row], Source(train="x"), vocabulary))
    assert [task.labels[sample.label] for sample in found] == ["of", "nothing"]


def test_f1_of_relations_ignores_the_negative_class() -> None:
    sums = {
        "samples": 10.0,
        "correct": 9.0,
        "nll": 1.0,
        "hit:NONE": 9.0,
        "guessed:NONE": 10.0,
        "true:NONE": 9.0,
        "true:of": 1.0,
    }
    assert Classify((), marked_pairs, "NONE").metrics(sums)["micro_f1"] == 0.0
    assert Classify((), marked_pairs).metrics(sums)["micro_f1"] == pytest.approx(0.9)


def test_tagging_loss_equals_transformers() -> None:
    import torch

    vocabulary = Vocabulary(byte_tokenizer(), 40, LABELS)
    config = transformers.BertConfig(
        vocab_size=vocabulary.size, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=48
    )
    config.id2label = dict(enumerate(LABELS))
    torch.manual_seed(0)
    model = transformers.AutoModelForTokenClassification.from_config(config).eval()
    row = Row({"tokens": [w for w, _ in EXPECTED], "tags": [t for _, t in EXPECTED], "text": TEXT})
    [sample] = usable(Tag().encode([row], Source(train="x"), vocabulary))
    held = examples.Examples(
        np.asarray(sample.ids, np.int32), np.array([0, len(sample.ids)]), np.array([-1], np.int32),
        np.zeros(1, np.int32), ("all",), np.asarray(sample.tags, np.int32),
    )  # fmt: skip
    batch = Tag().batch(held, np.arange(1), stream(0), vocabulary)
    labels = torch.tensor([[-100 if t == NO_TAG else t for t in sample.tags]])
    theirs = model(**batch.inputs, labels=labels).loss
    torch.testing.assert_close(Tag().loss(model, batch), theirs)
    with torch.inference_mode():
        assert Tag().score(model, batch)["words"] == len(EXPECTED)
    assert all(set(e) == {"text", "type", "span"} for e in Tag().predict(model, vocabulary, TEXT))


def test_reasons_never_quote_the_row(tmp_path: Path) -> None:
    """Reasons leave the silo."""
    secret = "Maria Rossi"
    bad: list[dict[str, Any]] = [
        {"tokens": [secret], "tags": [secret]},
        {"tokens": [secret], "tags": [f"B-{secret}"]},
        {"text": secret, "entities": [{"span": [secret, 3], "type": "Sign"}]},
        {"text": secret, "entities": [{"span": [0, 99], "type": secret}]},
        {"text": secret, "label": secret},
        {"text": secret, "entities": [], "relations": [{"head": secret, "tail": 0, "type": secret}]},
    ]
    vocabulary = Vocabulary(byte_tokenizer(), 40, LABELS)
    for task in (Tag(), Classify(), Classify((), marked_mentions), Classify((), marked_pairs)):
        read = [Row(row | {"text": row.get("text", "x")}) for row in bad]
        for sample in task.encode(read, Source(train="x"), vocabulary):
            if isinstance(sample, Unusable):
                assert secret not in sample.reason
    folder = tmp_path / "brat"
    folder.mkdir()
    (folder / "a.txt").write_text("some text")
    (folder / "a.ann").write_text(f"X9 {secret}\n")
    problems = Problems()
    list(rows_of(folder, problems))
    assert problems.bad == 1
    assert secret not in problems.first[0]


def rows_of(folder: Any, problems: Any) -> Any:
    return rows(Source(train=str(folder)), "train", WHOLE, problems)


def test_changed_brat_annotation_is_read_again(tmp_path: Path) -> None:
    file = as_brat(tmp_path / "doc.txt")
    vocabulary = Vocabulary(byte_tokenizer(), 40, LABELS)

    def tags() -> Any:
        encode = lambda some, s: Tag().encode(some, s, vocabulary)  # noqa: E731
        data = WHOLE.model_copy(update={"max_bad_rows": 1.0})
        return examples.load([Source(train=str(file))], "train", data, ["x"], encode, "f").tags.tolist()

    before = tags()
    annotation = file.with_suffix(".ann")
    annotation.write_text(annotation.read_text().replace("Disease 14 23", "Sign 14 23"))
    assert tags() != before


FAR = "aa " + "x " * 40 + "bb"


def test_pairs_too_far_apart_are_counted_as_annotated_or_derived(tmp_path: Path) -> None:
    document = {"text": FAR, "entities": [entity(0, 2, "A"), entity(83, 85, "B")]}
    document["relations"] = [{"head": 0, "tail": 1, "type": "of"}]
    labelled = {"text": FAR, "h_start": 0, "h_end": 2, "t_start": 83, "t_end": 85, "label": "NONE"}
    near = {"text": "aa bb", "h_start": 0, "h_end": 2, "t_start": 3, "t_end": 5, "label": "of"}
    file = tmp_path / "a.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in (document, labelled, near)))
    vocabulary = Vocabulary(byte_tokenizer(), 24, ("NONE", "of"))
    encode = lambda some, s: Classify((), marked_pairs, "NONE").encode(some, s, vocabulary)  # noqa: E731
    data = WHOLE.model_copy(update={"max_bad_rows": 0.7})
    held = examples.load([Source(train=str(file))], "train", data, ["x"], encode, "f")
    assert len(held) == 1
    annotated, derived = held.problems
    assert annotated.startswith("2 of 3 lines left out"), "a pair labelled NONE is annotated"
    assert derived.startswith(
        "1 derived samples (pairs without an annotated relation) left out: its mentions are too far"
    )


def test_an_entity_longer_than_a_sample_is_reported() -> None:
    vocabulary = Vocabulary(byte_tokenizer(), 18, LABELS)
    row = Row({"tokens": ["fever", "pneumonia", "pleurisy"], "tags": ["O", "B-Disease", "I-Disease"], "text": ""})
    [only] = Tag().encode([row], Source(train="x"), vocabulary)
    assert isinstance(only, Unusable)
    assert "an entity does not fit into a sample of 18 tokens" in only.reason


def test_another_name_for_the_text_field(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(json.dumps({"note": TEXT, "entities": [entity(3, 8, "Sign")]}))
    source = Source(train=str(file), text="note")
    vocabulary = Vocabulary(byte_tokenizer(), 40, LABELS)
    [sample] = usable(Tag().encode(list(rows(source, "train", WHOLE, Problems())), source, vocabulary))
    assert LABELS.index("B-Sign") in sample.tags


def test_rows_of_another_language_and_of_another_encoding_are_reported(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"text": "fever", "lang": "en"}\n{"text": "fièvre", "lang": "fr"}\n')
    problems = Problems()
    assert len(list(rows(Source(train=str(file), language="fr"), "train", WHOLE, problems))) == 1
    assert "its 'lang' is en, but the silo's language is fr" in problems.first[0]
    latin = tmp_path / "b.conll"
    latin.write_bytes("caf\xe9 O\n\nthe O\n".encode("latin-1"))
    problems = Problems()
    assert len(list(rows(Source(train=str(latin)), "train", WHOLE, problems))) == 1
    assert "not valid UTF-8" in problems.first[0]


def test_tags_of_iobes_and_bilou_are_read_as_bio(tmp_path: Path) -> None:
    for tags in (["O", "S-Sign", "O", "B-Disease", "E-Disease"], ["O", "U-Sign", "O", "B-Disease", "L-Disease"]):
        row = {"tokens": list("abcde"), "tags": tags}
        assert words_and_tags(row)[1] == ["O", "B-Sign", "O", "B-Disease", "I-Disease"]
    with pytest.raises(BadRow, match="a tag that is not BIO"):
        words_and_tags({"tokens": ["a"], "tags": ["X-Sign"]})


def test_overlapping_spans_are_refused_or_the_outer_ones_kept() -> None:
    row = {"text": TEXT, "entities": [entity(0, 8, "Sign"), entity(3, 8, "Sign"), entity(14, 23, "Disease")]}
    with pytest.raises(BadRow, match="overlap"):
        words_and_tags(row)
    words, tags = words_and_tags(row, overlaps="outer")
    assert list(zip(words, tags, strict=True))[:2] == [("No", "B-Sign"), ("fever", "I-Sign")]
    assert [tag for tag in tags if tag.endswith("Disease")] == ["B-Disease"]


@pytest.mark.parametrize("name", ["a.conll", "a.tsv", "a.txt"])
def test_columns_with_comments_are_read_whatever_the_suffix(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("# id = 7\n# text = No fever\nNo\tO\nfever\tB-Sign\n\n# b\n#\tO\nfever\tS-Sign\n")
    [one, two] = read(tmp_path / name)
    assert (one["tokens"], one["tags"]) == (["No", "fever"], ["O", "B-Sign"])
    assert two["tokens"] == ["#", "fever"]
    (tmp_path / "plain.txt").write_text("No fever\nI am O\n")
    assert [row["text"] for row in read(tmp_path / "plain.txt")] == ["No fever", "I am O"]
