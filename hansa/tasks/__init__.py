"""What is learned. A task brings its encoding, batches, loss, metrics and predictions, and registers in one place."""

from hansa.registry import Registry
from hansa.tasks.base import Task

TASKS: Registry[Task] = Registry("task")

# Each module registers itself above; the imports stand below because they need TASKS.
from hansa.tasks import causal_lm, classify, mlm, pairs, tag, translate  # noqa: E402, F401
