"""The chat template of a federation: written into its settings, so that every silo approves and uses the same one.

A chat template is a program. The folder of a starting model that travels has none (hansa/models/folder.py), so the
template of the tokenizer becomes a setting, which an administrator sees before approving a run.
"""

from hansa.config.federation import Federation
from hansa.config.tree import federated_vocabulary
from hansa.core.errors import ConfigError
from hansa.core.settings import Named
from hansa.models import tokenizer
from hansa.tasks.base import TASKS


def with_template(federation: Federation) -> Federation:
    """The federation with the tokenizer's chat template as ``task.template``, where a task has that setting unset.

    Raises `ConfigError` if the tokenizer has no chat template.
    """
    task = federation.task
    entry = TASKS.entries.get(task.name)
    if entry is None or "template" not in entry.model_fields or task.settings.get("template"):
        return federation
    path = federation.tokenizer.path or federation.model.path
    built = federated_vocabulary(federation) or federation.tokenizer.kind == "bytes" or path is None
    template = None if built else tokenizer.load(str(path)).chat_template
    if isinstance(template, dict):
        template = template.get("default")
    if not template:
        who = "a new tokenizer" if built else f"the tokenizer of {path}"
        raise ConfigError(
            f"task '{task.name}' needs a chat template, and {who} has none: set task.template to 'chatml' or to the "
            "text of a Jinja template"
        )
    return federation.model_copy(update={"task": Named(name=task.name, **task.settings | {"template": template})})
