"""The ``data`` section of a federation file."""

from pydantic import Field

from hansa.core.settings import Section, Share


class Data(Section):
    """How rows are split, de-identified and cut into samples."""

    max_length: int = Field(
        default=64,
        ge=8,
        le=8192,
        description="Maximum number of tokens of a sample; longer texts are split. Default with a pre-trained model: "
        "128; causal-lm 256, instruct 512.",
    )
    valid: Share = Field(
        default=0.05, description="Fraction of the rows used for validation, if no file is named for it."
    )
    test: Share = Field(default=0.1, description="Fraction of the rows used for testing, if no file is named for it.")
    max_bad_rows: Share = Field(default=0.01, description="Fail if a larger fraction of the input rows cannot be read.")
    deidentify: str | None = Field(
        default=None,
        description="De-identify rows while reading them: `rules`, `lists`, `model:FOLDER`, `presidio`, a finder of "
        "your own as `module:Class`, or several, as in `rules+lists`.",
    )
    keep_details: tuple[str, ...] = Field(
        default=(), description="Types of personal details that de-identification leaves alone, such as PROFESSION."
    )
