"""Tasks, one per file: what a model learns, from which rows, and how it is evaluated.

Every module registers its settings in `hansa.tasks.base.TASKS`; importing this package imports all modules.
"""

from hansa.tasks import causal_lm, classify, instruct, mlm, pairs, tag, translate

__all__ = ["causal_lm", "classify", "instruct", "mlm", "pairs", "tag", "translate"]
