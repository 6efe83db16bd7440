"""Where a silo's samples are stored, and how they are read: part of a federation file."""

from typing import Any, Literal

from pydantic import ConfigDict, Field, field_validator, model_validator

from hansa.core.settings import Count, Positive, Section


class Files(Section):
    """Files or folders for each split; without a file, valid and test are cut from the training rows."""

    train: str = Field(description="File or folder with the training rows.")
    valid: str | None = Field(default=None, description="File or folder with the validation rows.")
    test: str | None = Field(default=None, description="File or folder with the test rows.")

    def files(self) -> dict[str, str]:
        """The file of each split that has one."""
        return {split: file for split in ("train", "valid", "test") if (file := getattr(self, split)) is not None}


class Part(Section):
    """One of the clients that a silo was split into by `clients: N` (data/clients.py)."""

    name: str = Field(description="Name of the silo that was split.")
    number: int = Field(ge=0, description="Number of this client, counted from 0.")
    of: Count = Field(description="Number of clients.")
    skew: Positive | None = Field(
        default=None, description="Dirichlet parameter of the label distribution; unset: even."
    )
    seed: int = Field(default=0, description="Seed of the split.")


class Source(Files):
    """The samples of a silo and how to read them."""

    model_config = ConfigDict(coerce_numbers_to_str=True)  # `text: 1` is the first column of a table without header
    language: str = Field(default="", description="Language code of the texts.")
    domain: str = Field(
        default="", description="Name under which scores are grouped; default: the language; for translation, the silo."
    )
    text: str = Field(default="text", description="Field with the text.")
    second: str = Field(default="second", description="Field with the second text of a pair.")
    label: str = Field(default="label", description="Field with the label.")
    tokens: str = Field(default="tokens", description="ner: field with the list of words, where texts come as words.")
    tags: str = Field(default="tags", description="ner: field with the list of tags, one for each word.")
    target: str = Field(default="target", description="Field with the translation, or with the answer to the text.")
    target_language: str = Field(default="", description="Language code of the translations.")
    aligned: Files | None = Field(
        default=None, description="Plain text files; line n is the translation of line n of the silo's own files."
    )
    overlaps: Literal["drop", "outer"] = Field(
        default="drop",
        description="ner: rows whose annotated spans overlap are left out and counted, or keep their outermost spans.",
    )
    where: dict[str, str | int] = Field(default={}, description="Keep only rows whose fields have these values.")
    limit: int | None = Field(
        default=None, ge=0, description="Number of training rows to use, from the first; 0: the silo is only evaluated."
    )
    held_out_limit: Count | None = Field(
        default=None,
        description="Number of validation rows and of test rows to use, from the first; `limit` is for training alone.",
    )
    part: Part | None = Field(default=None, description="Written by `clients: N`; do not set it yourself.")

    @field_validator("aligned", mode="before")
    @classmethod
    def _one_file(cls, value: Any) -> Any:
        return {"train": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _both_sides(self) -> "Source":
        if self.aligned is None:
            return self
        for split in ("valid", "test"):
            if (getattr(self, split) is None) != (getattr(self.aligned, split) is None):
                raise ValueError(f"'{split}' is given for one language only: name both '{split}' and 'aligned.{split}'")
        return self

    def group(self, silo: str) -> str:
        """The name under which scores are grouped. Silos that translate often share a language: theirs is the silo."""
        return self.domain or (not self.target_language and self.language) or silo
