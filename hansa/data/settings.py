"""The ``data`` section of a federation file."""

from pydantic import Field

from hansa.core.settings import Section, Share


class Data(Section):
    """How rows become samples."""

    max_length: int = Field(
        default=64, ge=8, le=8192, description="Tokens in a sample; longer texts are cut into several."
    )
    valid: Share = Field(
        default=0.05, description="Fraction of the rows for validation, where a silo names no file for it."
    )
    test: Share = Field(default=0.1, description="Fraction of the rows for testing, where a silo names no file for it.")
    max_bad_rows: Share = Field(default=0.01, description="Fail if a larger fraction of the input rows cannot be read.")
    deidentify: str | None = Field(
        default=None,
        description="De-identify rows while reading them: `rules`, or a finder of your own as `module:Class`.",
    )
