"""TODO docstring."""

from typing import Annotated

from pydantic import Field

from hansa.core.settings import Count as Count
from hansa.core.settings import Named as Named
from hansa.core.settings import Positive as Positive
from hansa.core.settings import Section as Section
from hansa.core.settings import Share as Share
from hansa.core.simulation import Poison as Poison
from hansa.core.simulation import Simulation as Simulation
from hansa.data.source import Files as Files
from hansa.data.source import Source as Source


class Data(Section):
    max_length: Annotated[int, Field(ge=8, le=8192)] = 64
    valid: Share = 0.05
    test: Share = 0.1
    max_bad_rows: Share = 0.01  # go on while at most this share of the lines cannot be read
    deidentify: str | None = None  # before anything else: 'rules', or a finder of your own as 'module:Class'
