"""Instruction tuning: what is learned of a conversation, what happens to long ones, the metrics, and a complete run."""

from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu.metrics.chrf import CHRF

from hansa.client.evaluation import generated_samples, scored
from hansa.core.errors import ConfigError, UserError
from hansa.core.seeds import stream
from hansa.data.examples import Encoded, Examples, Texts, Unusable
from hansa.data.rows import BAD_ANNOTATION, TOO_LONG, Row
from hansa.data.source import Source
from hansa.models.tokenizer import byte_tokenizer
from hansa.tasks import bleu, rouge
from hansa.tasks.base import Vocabulary, better
from hansa.tasks.chat import CHATML, BadConversation, ChatFormat
from hansa.tasks.instruct import Instruct

SOURCE = Source(train="x", text="question", target="answer")
# Other forms of templates: an answer that eos ends, one that nothing ends, and one that drops what it wrote before.
MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% elif m.role == 'assistant' %} {{ m.content }}{{ eos_token }}{% else %}{{ raise_exception('no system') }}"
    "{% endif %}{% endfor %}"
)
BARE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
FORGETFUL = (
    "{% for m in messages %}{{ '<' + m.role + '>' }}{% if m.role != 'assistant' or loop.last %}{{ m.content }}"
    "{% endif %}<end>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


def words(markers: tuple[str, ...] = ("<|im_start|>", "<|im_end|>")) -> Any:
    found = byte_tokenizer()
    found.add_tokens(list(markers), special_tokens=True)
    return found


def row(**fields: Any) -> Row:
    made = Row(fields)
    made.place = "a.jsonl:1"
    return made


def said(*turns: str) -> list[dict[str, str]]:
    """User and assistant in turn."""
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(turns)]


def learned(vocabulary: Vocabulary, sample: Encoded) -> str:
    ids = [i for i, tag in zip(sample.ids, sample.tags, strict=True) if tag]
    return str(vocabulary.tokenizer.decode(ids))


def encoded(task: Instruct, vocabulary: Vocabulary, *rows: Row) -> list[Any]:
    return list(task.encode(list(rows), SOURCE, vocabulary))


def examples(samples: list[Encoded]) -> Examples:
    ids = [np.asarray(one.ids, np.int32) for one in samples]
    return Examples(
        np.concatenate(ids),
        np.cumsum([0, *map(len, ids)]),
        np.asarray([one.label for one in samples], np.int32),
        np.zeros(len(ids), np.int32),
        ("a",),
        np.concatenate([np.asarray(one.tags, np.int32) for one in samples]),
        texts=Texts.of([one.text for one in samples]),
    )


def decoder(size: int) -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=size, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=256, pad_token_id=0, bos_token_id=2, eos_token_id=3,
    )  # fmt: skip
    return transformers.AutoModelForCausalLM.from_config(config).eval()


@pytest.fixture
def vocabulary() -> Vocabulary:
    return Vocabulary(words(), 120)


# ── what is learned ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("template", "end"), [(CHATML, "<|im_end|>"), (MISTRAL, "</s>"), (BARE, "</s>")])
def test_only_answers_are_learned_with_the_marker_that_ends_them(template: str, end: str) -> None:
    vocabulary, task = Vocabulary(words(), 400), Instruct(template)
    [sample] = encoded(task, vocabulary, row(question="How old?", answer="Sixty-two."))
    space = " " if template is MISTRAL else ""
    assert learned(vocabulary, sample) == f"{space}Sixty-two.{end}"
    prompt = vocabulary.tokenizer.apply_chat_template(
        said("How old?"), chat_template=template, tokenize=False, add_generation_prompt=True
    )
    assert vocabulary.tokenizer.decode(sample.ids[: sample.label]) == prompt, "what the answer follows"
    assert sample.text == "Sixty-two."


def test_the_ids_are_those_of_the_library(vocabulary: Vocabulary) -> None:
    messages = said("a", "bb", "ccc", "dddd")
    [sample] = encoded(Instruct(CHATML), vocabulary, row(messages=messages, question="x"))
    theirs = vocabulary.tokenizer.apply_chat_template(messages, chat_template=CHATML, tokenize=True, return_dict=False)
    assert [*sample.ids] == theirs[: len(sample.ids)], "but for white space at the end"
    assert vocabulary.tokenizer.decode(theirs[len(sample.ids) :]).strip() == ""
    assert learned(vocabulary, sample) == "bb<|im_end|>dddd<|im_end|>", "both answers, and the questions not"


def test_the_loss_is_that_of_the_library_with_all_but_the_answers_ignored(vocabulary: Vocabulary) -> None:
    task, model = Instruct(CHATML), decoder(vocabulary.size)
    rows = [row(question="a?", answer="yes"), row(messages=said("b?", "no", "and c?", "perhaps"), question="x")]
    held = examples(encoded(task, vocabulary, *rows))
    batch = task.batch(held, np.arange(2), stream(0, "x"), vocabulary)
    tags = np.zeros(batch.inputs["input_ids"].shape, np.int64)
    for i in range(2):
        tags[i, : held.lengths[i]] = held.tags[held.offsets[i] : held.offsets[i + 1]]
    labels = batch.inputs["input_ids"].masked_fill(torch.from_numpy(tags) == 0, -100)
    torch.testing.assert_close(task.loss(model, batch), model(**batch.inputs, labels=labels).loss, rtol=1e-5, atol=1e-6)
    everything = batch.inputs["input_ids"].masked_fill(batch.inputs["attention_mask"] == 0, -100)
    assert abs(task.loss(model, batch) - model(**batch.inputs, labels=everything).loss) > 1e-4, "questions count there"


def test_the_words_of_the_question_do_not_change_the_targets(vocabulary: Vocabulary) -> None:
    task = Instruct(CHATML)
    [one], [other] = (encoded(task, vocabulary, row(question=q, answer="yes")) for q in ("short?", "a longer one?"))
    assert learned(vocabulary, one) == learned(vocabulary, other)


def test_a_system_message_stands_before_conversations_that_have_none(vocabulary: Vocabulary) -> None:
    task = Instruct(CHATML, system="Be brief.")
    own = [{"role": "system", "content": "Be kind."}, *said("a?", "b")]
    texts = [
        vocabulary.tokenizer.decode(one.ids)
        for one in encoded(task, vocabulary, row(question="a?", answer="b"), row(question="x", messages=own))
    ]
    assert ["Be brief." in text for text in texts] == [True, False]
    assert "Be kind." in texts[1]


# ── conversations that do not fit ─────────────────────────────────────────────────────────────────────────────────


@settings(max_examples=40)
@given(
    st.lists(st.text("abc ", min_size=1, max_size=30).filter(str.strip), min_size=2, max_size=12), st.integers(60, 160)
)
def test_every_answer_is_learned_once_or_reported(turns: list[str], window: int) -> None:
    turns = [turn.strip() for turn in turns[: len(turns) // 2 * 2]]
    vocabulary = Vocabulary(words(), window)
    found = encoded(Instruct(CHATML), vocabulary, row(messages=said(*turns), question="x"))
    samples = [one for one in found if isinstance(one, Encoded)]
    assert all(len(one.ids) <= window for one in samples)
    answers = [text for one in samples for text in learned(vocabulary, one).split("<|im_end|>")[:-1]]
    lost = [one for one in found if isinstance(one, Unusable)]
    assert all(one.kind == TOO_LONG for one in lost)
    assert len(answers) + len(lost) == len(turns) // 2
    rest = iter(turns[1::2])
    assert all(answer in rest for answer in answers), "whole, and in their order"


def test_old_turns_make_room_for_new_ones_and_are_counted(vocabulary: Vocabulary) -> None:
    turns = [f"{kind} number {i}" for i in range(5) for kind in ("question", "answer")]
    found = encoded(Instruct(CHATML), vocabulary, row(messages=said(*turns), question="x"))
    assert [learned(vocabulary, one) for one in found] == [f"answer number {i}<|im_end|>" for i in range(5)]
    last = vocabulary.tokenizer.decode(found[-1].ids)
    assert "answer number 3" in last, "as much of the context as fits"
    assert "number 0" not in last
    assert [one.shortened for one in found] == [False, False, True, True, True]
    assert {one.row for one in found} == {0}, "one row is behind them all"


def test_a_long_question_loses_its_beginning_and_a_long_answer_is_reported(vocabulary: Vocabulary) -> None:
    task = Instruct(CHATML)
    [cut] = encoded(task, vocabulary, row(question="x" * 200 + " so why?", answer="because"))
    assert cut.shortened
    assert len(cut.ids) <= vocabulary.max_length
    assert "so why?<|im_end|>" in vocabulary.tokenizer.decode(cut.ids)
    assert learned(vocabulary, cut) == "because<|im_end|>"
    [lost] = encoded(task, vocabulary, row(question="why?", answer="y" * 200))
    assert isinstance(lost, Unusable)
    assert (lost.kind, lost.place) == (TOO_LONG, "a.jsonl:1")
    assert lost.reason == (
        "an answer of 201 tokens leaves no room for its question in a sample of 120 (data.max_length)"
    )


def test_a_template_that_rewrites_earlier_turns_gives_one_sample_per_answer() -> None:
    vocabulary = Vocabulary(words(()), 200)
    found = encoded(Instruct(FORGETFUL), vocabulary, row(messages=said("a?", "b", "c?", "d"), question="x"))
    assert [learned(vocabulary, one) for one in found] == ["b<end>", "d<end>"]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"question": "a?"}, "it has neither a list 'messages' nor an answer in the field 'answer'"),
        ({"question": "a?", "answer": "  "}, "it has neither"),
        ({"question": "x", "messages": [{"role": "user", "content": "a"}]}, "no message of the role 'assistant'"),
        ({"question": "x", "messages": [{"role": "assistant", "content": None}]}, "not a list of {role, content}"),
        ({"question": "x", "messages": said("a", " ")}, "is empty"),
    ],
)
def test_rows_without_an_answer_are_reported(fields: Any, reason: str, vocabulary: Vocabulary) -> None:
    [found] = encoded(Instruct(CHATML), vocabulary, row(**fields))
    assert isinstance(found, Unusable)
    assert reason in found.reason
    assert found.kind == BAD_ANNOTATION


def test_what_a_template_refuses_is_reported(vocabulary: Vocabulary) -> None:
    messages = [{"role": "system", "content": "s"}, *said("a", "b")]
    [found] = encoded(Instruct(MISTRAL), vocabulary, row(messages=messages, question="x"))
    assert isinstance(found, Unusable)
    assert found.reason == "the chat template refuses it: no system"


def test_a_missing_or_broken_template_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match=r"needs a chat template, and the tokenizer has none: set task.template"):
        ChatFormat(words())
    with pytest.raises(ConfigError, match=r"task.template: a question and an answer cannot be written with it"):
        ChatFormat(words(), "{% for %}")
    with pytest.raises(ConfigError, match="it leaves the answer out"):
        ChatFormat(words(), "{{ messages[0].content }}")
    with pytest.raises(BadConversation, match="refuses"):
        ChatFormat(words(), MISTRAL).text([{"role": "system", "content": "x"}])


# ── generated answers ─────────────────────────────────────────────────────────────────────────────────────────────


class Parrot(torch.nn.Module):
    """Writes one sequence of tokens, whatever the prompt is."""

    device = torch.device("cpu")

    def __init__(self, ids: list[int]) -> None:
        super().__init__()
        self.ids, self.asked = ids, list[Any]()

    def generate(self, input_ids: Any, attention_mask: Any, **settings: Any) -> Any:
        self.asked.append((input_ids, attention_mask, settings))
        return torch.cat([input_ids, torch.tensor(self.ids).expand(len(input_ids), -1)], dim=1)


def test_answers_are_compared_with_those_of_the_rows(vocabulary: Vocabulary) -> None:
    task = Instruct(CHATML)
    held = examples(
        encoded(task, vocabulary, row(question="a?", answer="the cat sat"), row(question="bb bb?", answer="a dog ran"))
    )
    parrot = Parrot(vocabulary.tokenizer("the cat sat", add_special_tokens=False)["input_ids"])
    sums = task.compare(parrot, held, np.asarray([1, 0]), vocabulary, 8)
    assert sums["rouge_l"] == 1.0, "one is the same, the other has no word in common"
    assert task.metrics(sums)["rouge_l"] == 50.0
    theirs = CHRF().corpus_score(["the cat sat"] * 2, [["the cat sat", "a dog ran"]]).score
    assert task.metrics(sums)["chrf"] == pytest.approx(theirs)
    assert set(sums) | {"nll", "tokens", "correct"} == set(task.sum_names((), True))
    ids, mask, given = parrot.asked[0]
    assert mask[:, -1].all(), "padding is on the left"
    assert given["eos_token_id"] == sorted([3, vocabulary.tokenizer.convert_tokens_to_ids("<|im_end|>")])
    assert vocabulary.tokenizer.decode(ids[-1][mask[-1] == 1]).endswith("<|im_start|>assistant\n")


def lcs(a: list[str], b: list[str]) -> int:
    """The longest common subsequence, by its recursion."""
    table = np.zeros((len(a) + 1, len(b) + 1), int)
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            table[i + 1, j + 1] = table[i, j] + 1 if x == y else max(table[i, j + 1], table[i + 1, j])
    return int(table[-1, -1])


@given(st.lists(st.sampled_from("aж9é"), max_size=12), st.lists(st.sampled_from("aж9é"), max_size=12))
def test_rouge_l_follows_its_formula(left: list[str], right: list[str]) -> None:
    found = rouge.f1(" ".join(left).upper(), ", ".join(right))
    if not left and not right:
        assert found == 1.0
    else:
        common = lcs(left, right)
        recall, precision = common / max(1, len(right)), common / max(1, len(left))
        formula = 2 * recall * precision / (recall + precision) if common else 0.0
        assert found == pytest.approx(formula)


def test_rouge_l_depends_on_the_order_of_words() -> None:
    assert rouge.f1("one two three", "one two three") == 1.0
    assert rouge.f1("three two one", "one two three") == pytest.approx(1 / 3)
    assert rouge.metrics({}) == {}
    assert bleu.metrics({}) == {}


def test_directions_are_declared_once() -> None:
    task = Instruct(CHATML)
    assert {m: better(task, m) for m in ("loss", "perplexity", "rouge_l", "chrf", "accuracy")} == {
        "loss": "low", "perplexity": "low", "rouge_l": "high", "chrf": "high", "accuracy": "high",
    }  # fmt: skip


def test_few_answers_are_written_and_as_many_rows_are_behind_their_scores(vocabulary: Vocabulary) -> None:
    task = Instruct(CHATML, answers=3)
    held = examples(encoded(task, vocabulary, *(row(question=f"{i}?", answer=str(i)) for i in range(40))))
    mine = np.arange(40)
    assert generated_samples(task, mine, 0, 1).tolist() == [0, 13, 26]
    assert [len(generated_samples(task, mine, part, 4)) for part in range(4)] == [3, 0, 0, 0]
    assert scored(held, 0) == {"a": 40}
    assert scored(held, 0, writing=task) == {"a": 3}, "a policy's limits.min_samples sees them"


def test_a_conversation_forgets_its_oldest_turns_and_a_long_question_is_one_sentence(vocabulary: Vocabulary) -> None:
    task, parrot = Instruct(CHATML), Parrot([vocabulary.tokenizer.convert_tokens_to_ids("<|im_end|>")])
    task.reply(parrot, vocabulary, said("old " * 10, "older " * 8, "new?"))
    shown = vocabulary.tokenizer.decode(parrot.asked[0][0][0])
    assert "new?" in shown
    assert "old" not in shown
    with pytest.raises(UserError, match=r"the question has \d+ tokens with its chat template"):
        task.reply(parrot, vocabulary, said("x" * 200))
