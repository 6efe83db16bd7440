"""`hansa.survey`: federated statistics before training, from Python."""

from pathlib import Path
from tempfile import TemporaryDirectory

from hansa.api.federation import Federation
from hansa.runs.survey import Survey, simulate_survey


def survey(federation: Federation | str | Path) -> Survey:
    """Survey the silos of a federation, or of a federation file, on this machine.

    The result has data frames: ``silos``, ``counts("languages")``, ``shares``, ``vocabulary_overlap``,
    ``near_duplicates``. Raises `UserError` for wrong input, and `RunFailed` if the policies of all silos refuse.
    """
    described = federation if isinstance(federation, Federation) else Federation.from_yaml(federation)
    with TemporaryDirectory() as folder:
        return simulate_survey(described.placed(Path(folder)))
