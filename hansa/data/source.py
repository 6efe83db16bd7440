"""Where a silo's samples lie, and how they are read."""

from typing import Annotated, Any

from pydantic import ConfigDict, Field, field_validator, model_validator

from hansa.core.settings import Count, Positive, Section


class Files(Section):
    """A file or folder for training; where valid and test have none of their own, they are cut from it."""

    train: str
    valid: str | None = None
    test: str | None = None

    def files(self) -> dict[str, str]:
        """Split → file, where it has one."""
        return {split: file for split in ("train", "valid", "test") if (file := getattr(self, split)) is not None}


class Part(Section):
    """Client ``number`` of the ``of`` clients that silo ``name`` was split into; see data/clients.py."""

    name: str
    number: Annotated[int, Field(ge=0)]
    of: Count
    skew: Positive | None = None
    seed: int = 0


class Source(Files):
    """Samples and how to read them."""

    model_config = ConfigDict(coerce_numbers_to_str=True)  # `text: 1` is the first column of a table without header
    language: str = ""
    domain: str = ""  # what its scores are told apart by; default the language, of translations the silo
    text: str = "text"
    second: str = "second"  # the other text of a pair
    label: str = "label"
    target: str = "target"  # of translations: the field beside ``text``
    target_language: str = ""
    aligned: Files | None = None  # plain text whose line n is the translation of line n of the files above
    where: dict[str, str | int] = {}  # keep only rows whose fields have these values
    limit: Annotated[int, Field(ge=0)] | None = None  # use the first so many training rows; 0: test on it alone
    part: Part | None = None  # written by 'clients: N' on the silo

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
                raise ValueError(f"'{split}' is given for one side only: name both '{split}' and 'aligned.{split}'")
        return self

    def group(self, silo: str) -> str:
        """The name of its scores: translations share their languages, so silos tell them apart."""
        return self.domain or (not self.target_language and self.language) or silo
