"""What every section of a federation file is made of."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

Share = Annotated[float, Field(ge=0.0, le=1.0)]
Positive = Annotated[float, Field(gt=0.0)]
Count = Annotated[int, Field(ge=1)]


class Section(BaseModel):
    """Base of all sections of a federation file: frozen, without unknown keys, without NaN."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Named(BaseModel):
    """A task or a method: its name, and settings that its own file declares and validates."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str

    @property
    def settings(self) -> dict[str, Any]:
        """The settings beside the name."""
        return dict(self.model_extra or {})


def refuse_secret(settings: Any) -> Any:
    """Refuse `secret`, which settings of noise had; return the other settings unchanged."""
    if isinstance(settings, dict) and "secret" in settings:
        raise ValueError(
            "'secret' is no longer a setting, because noise is secret by default: leave it out, or write 'seeded: "
            "true' for a simulation that must repeat"
        )
    return settings
