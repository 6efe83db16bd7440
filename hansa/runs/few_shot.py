"""Few-shot evaluation of a causal language model: which of several choices it finds most likely.

A YAML file describes tasks over local files (`hansa evaluate RUN --few-shot FILE.yaml`):

    xcopa-it:
      data: xcopa.jsonl                       # rows: any format that Hansa reads
      where: {language: it}
      prompt: "{{ premise }} {{ 'perché' if question == 'cause' else 'quindi' }} "
      choices: ["{{ choice1 }}", "{{ choice2 }}"]   # or the name of a field with a list
      answer: label                           # field: the number of the choice, from 0, or its text
    next-sentence:
      data: held-out.jsonl
      continuation: {text: text, choices: 4}  # which of four sentences follows? the others are from other rows

Prompts and choices are Jinja templates over the fields of a row. A choice c after a prompt p has the score
log P(c | p), the sum over its tokens; ``accuracy`` takes the highest score, ``accuracy_normalised`` the highest score
per byte of c (Brown et al., 2020, Section 2.4, normalise by tokens; bytes do not depend on the tokenizer). With
``shots``, each row's prompt begins with that many other rows and their answers.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jinja2 import StrictUndefined, TemplateError
from jinja2.sandbox import SandboxedEnvironment
from pydantic import Field, ValidationError, model_validator

from hansa.config.file import load_yaml, sentence
from hansa.core.batch import Batch
from hansa.core.errors import DataError, UserError, did_you_mean
from hansa.core.seeds import stream
from hansa.core.settings import Count, Section
from hansa.data.importing.sentences import splitter
from hansa.data.readers import READERS, data_files
from hansa.data.source import Source
from hansa.tasks.base import Vocabulary
from hansa.tasks.target_rows import logits_at

CAUSAL = "AutoModelForCausalLM"
BATCH = 16  # choices that go through the model together


class Continuation(Section):
    """Which sentence follows: rows of plain text become questions."""

    text: str = Field(default="text", description="Field with the text.")
    choices: int = Field(default=4, ge=2, description="Number of choices; all but one are sentences of other rows.")
    language: str = Field(default="en", description="Language whose rules split a text into sentences.")


class FewShotTask(Section):
    """One task of a few-shot file."""

    data: str = Field(description="File or folder with the rows.")
    prompt: str = Field(default="", description="Jinja template of the text before a choice.")
    choices: tuple[str, ...] | str = Field(
        default=(), description="Jinja templates of the choices, or the name of a field with a list of texts."
    )
    answer: str = Field(default="answer", description="Field with the number of the right choice, from 0, or its text.")
    continuation: Continuation | None = Field(default=None, description="Questions from plain text instead.")
    shots: int = Field(default=0, ge=0, description="Solved rows before each question.")
    examples: str | None = Field(
        default=None, description="File that these rows come from; default: the other rows of `data`."
    )
    separator: str = Field(default="\n\n", description="Text after each solved row.")
    where: dict[str, str | int] = Field(default={}, description="Keep only rows whose fields have these values.")
    limit: Count | None = Field(default=None, description="Number of rows to use, from the first.")

    @model_validator(mode="after")
    def _one_form(self) -> "FewShotTask":
        if (self.continuation is not None) == bool(self.choices):
            raise ValueError("a task has either 'choices' (with 'prompt' and 'answer') or 'continuation'")
        return self


class _File(Section):
    tasks: dict[str, FewShotTask]


@dataclass(frozen=True)
class Question:
    """A prompt, the choices after it, and the number of the right one."""

    prompt: str
    choices: tuple[str, ...]
    answer: int


def read_tasks(file: Path) -> dict[str, FewShotTask]:
    """The tasks of a few-shot file; paths are relative to it. Raises `UserError` in one sentence."""
    raw, text = load_yaml(file, "docs/instruct.md shows one", "a few-shot file", "task name → its settings")
    try:
        found = _File.model_validate({"tasks": raw}).tasks
    except ValidationError as error:
        raise UserError(sentence(error, str(file), text, FewShotTask)) from None
    here = file.parent

    def placed(task: FewShotTask) -> FewShotTask:
        """The task with the paths of its data and examples resolved against the file's folder."""
        examples = None if task.examples is None else str(here / task.examples)
        return task.model_copy(update={"data": str(here / task.data), "examples": examples})

    return {name: placed(task) for name, task in found.items()}


# ── questions ─────────────────────────────────────────────────────────────────────────────────────────────────────


def questions(task: FewShotTask, name: str, seed: int) -> list[Question]:
    """The questions of a task, with their solved examples; raises `DataError` for a row that cannot be used."""
    plain = _continuations(task, name, seed) if task.continuation else list(_multiple_choice(task, task.data))
    if not plain:
        raise DataError(f"{task.data}: no row of it is a question of the few-shot task '{name}'")
    if not task.shots:
        return plain
    pool = plain if task.examples is None else list(_multiple_choice(task, task.examples))
    if len(pool) - (pool is plain) < task.shots:
        raise DataError(f"{task.examples or task.data}: it has fewer rows than the {task.shots} shots of '{name}'")
    found = []
    for number, question in enumerate(plain):
        order = stream(seed, name, number, "shots").permutation(len(pool)).tolist()
        chosen = [i for i in order if pool is not plain or i != number][: task.shots]
        shown = (pool[i].prompt + pool[i].choices[pool[i].answer] + task.separator for i in chosen)
        found.append(Question("".join(shown) + question.prompt, question.choices, question.answer))
    return found


def _rows(path: str, where: Mapping[str, str | int]) -> Iterator[tuple[str, dict[str, Any]]]:
    source = Source(train=path)
    for file in data_files(Path(path)):
        for number, fields, reason in READERS.reader(file)(file, source):
            if fields is None:
                raise DataError(f"{file}:{number}: {reason}")
            if all(str(fields.get(key)) == str(value) for key, value in where.items()):
                yield f"{file}:{number}", fields


def _multiple_choice(task: FewShotTask, path: str) -> Iterator[Question]:
    environment = SandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True)
    for count, (place, row) in enumerate(_rows(path, task.where)):
        if task.limit is not None and count >= task.limit:
            return
        try:
            prompt = environment.from_string(task.prompt).render(row)
            if isinstance(task.choices, str):
                choices = tuple(map(str, row[task.choices]))
            else:
                choices = tuple(environment.from_string(one).render(row) for one in task.choices)
        except (TemplateError, KeyError, TypeError) as error:
            raise DataError(f"{place}: its prompt or choices cannot be written ({error})") from None
        if task.answer not in row:
            raise DataError(f"{place}: no field '{task.answer}' ({did_you_mean(task.answer, row)})")
        if len(choices) < 2 or not all(choice.strip() for choice in choices):
            raise DataError(f"{place}: it needs two or more choices that are not empty")
        yield Question(prompt, choices, _right(row[task.answer], choices, place))


def _right(given: Any, choices: Sequence[str], place: str) -> int:
    """The number of the right choice; raises `DataError`."""
    if isinstance(given, str) and given in choices:
        return choices.index(given)
    number = int(given) if str(given).isdigit() else -1
    if not 0 <= number < len(choices):
        raise DataError(f"{place}: its answer {str(given)[:60]!r} is none of its {len(choices)} choices")
    return number


def _continuations(task: FewShotTask, name: str, seed: int) -> list[Question]:
    """The last sentence of each text among sentences of other texts."""
    assert task.continuation is not None
    settings, cut = task.continuation, splitter(task.continuation.language)
    texts = []
    for place, row in _rows(task.data, task.where):
        if not isinstance(row.get(settings.text), str):
            raise DataError(f"{place}: no text in the field '{settings.text}'")
        sentences = [s.strip() for s in cut(row[settings.text]) if s.strip()]
        if len(sentences) > 1:
            texts.append(sentences)
        if task.limit is not None and len(texts) >= task.limit:
            break
    if len(texts) < settings.choices:
        raise DataError(
            f"{task.data}: '{name}' needs {settings.choices} texts of two sentences, and it has {len(texts)}"
        )
    found = []
    for number, sentences in enumerate(texts):
        rng = stream(seed, name, number, "choices")
        others = [i for i in rng.permutation(len(texts)).tolist() if i != number][: settings.choices - 1]
        choices = [texts[i][-1] for i in others]
        answer = int(rng.integers(settings.choices))
        choices.insert(answer, sentences[-1])
        found.append(Question(" ".join(sentences[:-1]) + " ", tuple(choices), answer))
    return found


# ── scores ────────────────────────────────────────────────────────────────────────────────────────────────────────


def evaluate_few_shot(
    model: Any, auto: str, vocabulary: Vocabulary, tasks: Mapping[str, FewShotTask], seed: int
) -> dict[str, dict[str, float]]:
    """Task → accuracy, accuracy per byte, chance and number of questions.

    Raises `UserError` if the model is not a causal language model.
    """
    if auto != CAUSAL:
        raise UserError("--few-shot scores continuations, which needs a model of the task causal-lm or instruct")
    found = {}
    for name, task in tasks.items():
        asked = questions(task, name, seed)
        scores = log_likelihoods(model, vocabulary, [(q.prompt, c) for q in asked for c in q.choices])
        right = normalised = chance = 0.0
        at = 0
        for question in asked:
            mine = scores[at : at + len(question.choices)]
            at += len(question.choices)
            sizes = np.asarray([len(choice.encode()) for choice in question.choices])
            right += int(mine.argmax()) == question.answer
            normalised += int((mine / sizes).argmax()) == question.answer
            chance += 1 / len(question.choices)
        count = len(asked)
        found[name] = {
            "accuracy": right / count,
            "accuracy_normalised": normalised / count,
            "chance": chance / count,
            "questions": float(count),
        }
    return found


@torch.inference_mode()
def log_likelihoods(model: Any, vocabulary: Vocabulary, pairs: Sequence[tuple[str, str]]) -> np.ndarray[Any, Any]:
    """Log P(choice | prompt) of each pair; a prompt that is too long for the model loses its beginning.

    Raises `DataError` if a choice alone is too long.
    """
    model.eval()
    window = int(getattr(model.config, "max_position_embeddings", 0) or vocabulary.max_length)
    samples = [_sample(vocabulary, prompt, choice, window) for prompt, choice in pairs]
    found, device = np.zeros(len(pairs)), next(model.parameters()).device
    order = sorted(range(len(pairs)), key=lambda i: len(samples[i][0]))
    for start in range(0, len(order), BATCH):
        some = order[start : start + BATCH]
        width = max(len(samples[i][0]) for i in some)
        ids = torch.full((len(some), width), vocabulary.pad)
        mask, rows, owner = torch.zeros_like(ids), list[int](), list[int]()
        for place, i in enumerate(some):
            tokens, first = samples[i]
            ids[place, : len(tokens)], mask[place, : len(tokens)] = torch.tensor(tokens), 1
            rows += range(place * width + first - 1, place * width + len(tokens) - 1)
            owner += [i] * (len(tokens) - first)
        at = torch.tensor(rows)
        batch = Batch({"input_ids": ids, "attention_mask": mask}, at, ids.reshape(-1)[at + 1]).to(device)
        chances = logits_at(model, batch).log_softmax(dim=-1).gather(1, batch.targets[:, None]).squeeze(1)
        np.add.at(found, owner, chances.double().cpu().numpy())
    return found


def _sample(vocabulary: Vocabulary, prompt: str, choice: str, window: int) -> tuple[list[int], int]:
    """Token ids of a prompt and a choice, and the position where the choice begins: at least 1.

    A space between the two belongs to the choice, as most tokenizers join it to the next word.
    """
    text, edge = prompt + choice, len(prompt.rstrip())
    encoded = vocabulary.tokenizer(text, return_offsets_mapping=True, add_special_tokens=False)
    ids, offsets = list(encoded["input_ids"]), encoded["offset_mapping"]
    first = next(i for i, (_, end) in enumerate(offsets) if end > edge)
    before = vocabulary.around[0] or [vocabulary.tokenizer.bos_token_id or vocabulary.tokenizer.eos_token_id or 0]
    room = window - len(before)
    if len(ids) - first > room:
        raise DataError(f"a choice has {len(ids) - first} tokens, and the model reads {window}: shorten it")
    cut = max(0, len(ids) - room)
    return [*before, *ids[cut:]], len(before) + first - cut
