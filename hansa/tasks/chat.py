"""Conversations as token ids, by the chat template of a tokenizer.

A chat template is a Jinja program that writes messages ({role, content}) as the text that a model was trained on. The
tokens of an answer are those from the end of the generation prompt to the end of the assistant's turn, with the marker
that ends it, so that the model learns to stop; white space after the marker is not learned.

A conversation that does not fit into a sample becomes one sample for each answer, with as many of the newest earlier
turns as fit. Where one exchange alone does not fit, the longest of its messages before the answer loses its beginning.
An answer is never cut: one that leaves no room for a question is reported as too long.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from jinja2 import TemplateError

from hansa.core.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Message = dict[str, str]  # role and content
ASSISTANT, USER, SYSTEM = "assistant", "user", "system"
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TEMPLATES = {"chatml": CHATML}  # names that `task.template` may give instead of a template
MARKER = re.compile(r"<\|\w+\|>")
SHORTENINGS = 8  # attempts: a shortened text may have other tokens than the end of the whole one


class BadConversation(Exception):
    """Why a conversation cannot be used; ``long``: because it does not fit into a sample."""

    def __init__(self, reason: str, long: bool = False) -> None:
        super().__init__(reason)
        self.long = long


class Turns(NamedTuple):
    """A conversation as token ids.

    ``learned``: 1 for tokens of answers; ``prompt``: tokens before the last answer; ``shortened``: something of what
    precedes the answer was left out, because it did not fit.
    """

    ids: list[int]
    learned: list[int]
    prompt: int
    shortened: bool = False


@dataclass(frozen=True)
class ChatFormat:
    """A tokenizer and a chat template; an empty one: the tokenizer's own.

    Raises `ConfigError` where there is none, or where it cannot be read.
    """

    tokenizer: "PreTrainedTokenizerBase"
    template: str = ""

    def __post_init__(self) -> None:
        if not self.template and not self.tokenizer.chat_template:
            raise ConfigError(
                "task 'instruct' needs a chat template, and the tokenizer has none: set task.template to 'chatml' or "
                "to the text of a Jinja template"
            )
        try:
            _ = self.turn_end
        except (BadConversation, ValueError) as error:
            raise ConfigError(f"task.template: a question and an answer cannot be written with it ({error})") from None

    def text(self, messages: Sequence[Message], prompt: bool = False) -> str:
        """The messages as text; ``prompt``: with what precedes an answer. Raises `BadConversation`."""
        try:
            written: str = self.tokenizer.apply_chat_template(
                list(messages), chat_template=self.template or None, tokenize=False, add_generation_prompt=prompt
            )
        except (TemplateError, TypeError, IndexError, KeyError) as error:
            raise BadConversation(f"the chat template refuses it: {' '.join(str(error).split())[:200]}") from None
        return written

    @cached_property
    def turn_end(self) -> str:
        """What the template writes after an answer, without white space; empty if it writes nothing."""
        messages = [{"role": USER, "content": "question"}, {"role": ASSISTANT, "content": "answer"}]
        _, found, end = self.text(messages).rpartition("answer")
        if not found:
            raise BadConversation("it leaves the answer out")
        return end.strip()

    @cached_property
    def stops(self) -> list[int]:
        """The tokens that end a generated answer."""
        end = self.tokenizer(self.turn_end, add_special_tokens=False)["input_ids"] if self.turn_end else []
        eos = self.tokenizer.eos_token_id
        return sorted({*(end if len(end) == 1 else ()), *([eos] if eos is not None else ())})

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """The token ids that the answer to these messages follows."""
        found: list[int] = self.tokenizer(self.text(messages, prompt=True), add_special_tokens=False)["input_ids"]
        return found

    def turns(self, messages: Sequence[Message], last: bool = False) -> Turns:
        """The token ids of a conversation that ends with an answer; ``last``: only that one is learned.

        Raises `BadConversation` if the template writes the beginning of the conversation differently from the whole.
        """
        whole = self.text(messages).rstrip()
        first = len(messages) - 1 if last else 0
        answers = [i for i, message in enumerate(messages) if message["role"] == ASSISTANT and i >= first]
        spans = [(self._before(messages, i, whole), self._after(messages, i, whole)) for i in answers]
        encoded = self.tokenizer(whole, add_special_tokens=False, return_offsets_mapping=True)
        ids, offsets = list(encoded["input_ids"]), encoded["offset_mapping"]
        learned = [int(any(begin < right and left < end for begin, end in spans)) for left, right in offsets]
        prompt = next((i for i, (_, right) in enumerate(offsets) if right > spans[-1][0]), len(ids))
        if not self.turn_end and self.tokenizer.eos_token_id is not None:
            ids, learned = [*ids, self.tokenizer.eos_token_id], [*learned, 1]
        return Turns(ids, learned, prompt)

    def _before(self, messages: Sequence[Message], index: int, whole: str) -> int:
        """Where the answer at ``index`` begins in the text of the whole conversation."""
        return self._length(self.text(messages[:index], prompt=True), whole)

    def _after(self, messages: Sequence[Message], index: int, whole: str) -> int:
        """Where it ends."""
        return self._length(self.text(messages[: index + 1]).rstrip(), whole)

    def _length(self, beginning: str, whole: str) -> int:
        if not whole.startswith(beginning):
            raise BadConversation("the chat template writes the beginning of a conversation differently from the whole")
        return len(beginning)

    # ── conversations that do not fit ─────────────────────────────────────────────────────────────────────────────

    def samples(self, messages: Sequence[Message], window: int) -> Iterator[tuple[Turns, str] | BadConversation]:
        """The samples of a conversation of at most ``window`` tokens, each with its last answer.

        An answer that cannot be used comes as the reason. Raises `BadConversation` if there is no answer at all.
        """
        system, exchanges = split(messages)
        if not exchanges:
            raise BadConversation("it has no message of the role 'assistant' to learn from")
        complete = [*system, *(message for exchange in exchanges for message in exchange)]
        try:
            turns = self.turns(complete)
        except BadConversation:  # some templates write earlier turns differently: then each answer by itself
            turns = None
        if turns is not None and len(turns.ids) <= window:
            yield turns, complete[-1]["content"]
            return
        for number, exchange in enumerate(exchanges):
            try:
                yield self._fitting(system, exchanges[:number], exchange, window), exchange[-1]["content"]
            except BadConversation as problem:
                yield problem

    def _fitting(
        self, system: list[Message], earlier: list[list[Message]], exchange: list[Message], window: int
    ) -> Turns:
        """One exchange after as many of the newest earlier ones as fit; shortened if it alone does not fit."""
        turns = self.turns([*system, *exchange], last=True)
        if len(turns.ids) > window:
            return self._shortened(system, exchange, window)
        kept: list[Message] = []
        for one in reversed(earlier):
            kept = [*one, *kept]
            longer = self.turns([*system, *kept, *exchange], last=True)
            if len(longer.ids) > window:
                return turns._replace(shortened=True)
            turns = longer
        return turns

    def _shortened(self, system: list[Message], exchange: list[Message], window: int) -> Turns:
        """One exchange whose longest message before the answer loses its beginning; raises `BadConversation`."""
        turns = self.turns([*system, *exchange], last=True)
        answer = len(turns.ids) - turns.prompt
        for _ in range(SHORTENINGS):
            if len(turns.ids) <= window:
                return turns._replace(shortened=True)
            longest = max(range(len(exchange) - 1), key=lambda i: len(exchange[i]["content"]), default=-1)
            if longest < 0:
                break
            cut = self._without_beginning(exchange[longest]["content"], len(turns.ids) - window)
            if not cut:
                break
            exchange = [*exchange]
            exchange[longest] = exchange[longest] | {"content": cut}
            turns = self.turns([*system, *exchange], last=True)
        raise BadConversation(
            f"an answer of {answer} tokens leaves no room for its question in a sample of {window} (data.max_length)",
            long=True,
        )

    def _without_beginning(self, text: str, tokens: int) -> str:
        """The text without its first ``tokens`` tokens; empty if it has no more."""
        offsets = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
        return text[offsets[tokens][0] :].lstrip() if tokens < len(offsets) else ""


def split(messages: Sequence[Message]) -> tuple[list[Message], list[list[Message]]]:
    """The system messages at the beginning, and the exchanges, each of which ends with an answer.

    Messages after the last answer are left out: nothing can be learned from them.
    """
    first = next((i for i, message in enumerate(messages) if message["role"] != SYSTEM), len(messages))
    exchanges: list[list[Message]] = []
    current: list[Message] = []
    for message in messages[first:]:
        current.append(message)
        if message["role"] == ASSISTANT:
            exchanges.append(current)
            current = []
    return list(messages[:first]), exchanges


def checked(messages: Any) -> list[Message]:
    """The messages of a row; raises `BadConversation` if they are not pairs of role and text."""
    found: list[Message] = []
    for message in messages:
        if not isinstance(message, dict) or not all(isinstance(message.get(k), str) for k in ("role", "content")):
            raise BadConversation("its 'messages' are not a list of {role, content} with texts")
        if not message["content"].strip():
            raise BadConversation(f"one of its 'messages', of the role '{message['role'][:40]}', is empty")
        found.append({"role": message["role"], "content": message["content"]})
    return found
