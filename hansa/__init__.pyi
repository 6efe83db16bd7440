from hansa import callbacks as callbacks
from hansa import methods as methods
from hansa.api.check import Check as Check
from hansa.api.federation import Federation as Federation
from hansa.api.run import Comparison as Comparison
from hansa.api.run import Rounds as Rounds
from hansa.api.run import compare as compare
from hansa.api.run import load as load
from hansa.api.run import rounds as rounds
from hansa.api.run import run as run
from hansa.api.survey import survey as survey
from hansa.core.errors import ConfigError as ConfigError
from hansa.core.errors import DataError as DataError
from hansa.core.errors import HansaError as HansaError
from hansa.core.errors import RunFailed as RunFailed
from hansa.core.errors import UserError as UserError
from hansa.core.method import Method as Method
from hansa.runs.callbacks import RoundRecord as RoundRecord
from hansa.runs.result import Result as Result
from hansa.runs.survey import Survey as Survey

__version__: str
__all__ = [
    "Check",
    "Comparison",
    "ConfigError",
    "DataError",
    "Federation",
    "HansaError",
    "Method",
    "Result",
    "RoundRecord",
    "Rounds",
    "RunFailed",
    "Survey",
    "UserError",
    "__version__",
    "callbacks",
    "compare",
    "load",
    "methods",
    "rounds",
    "run",
    "survey",
]
