"""Federated learning methods, one paper per file.

Every module registers its settings in `hansa.core.method.METHODS` under the name that a federation file uses; importing
this package imports them all.
"""

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
