"""One paper, one file. A method registers its settings under the name a federation file uses."""

from dataclasses import replace
from importlib import import_module
from pkgutil import iter_modules

from hansa import upload
from hansa.config import Federation, Node
from hansa.method import Method
from hansa.registry import Registry

METHODS: Registry[Method] = Registry("method")

for _module in iter_modules(__path__):  # every module registers itself above
    import_module(f"{__name__}.{_module.name}")

from hansa.methods.controllers import Layers, of_added  # noqa: E402
from hansa.methods.fedopt import server_optimiser  # noqa: E402
from hansa.methods.robust import aggregation  # noqa: E402


def build(federation: Federation, node: Node | None = None) -> Method:
    """The method a federation file asks for: the named paper, then the slots the file fills itself. A ``node`` may have
    a method and a server of its own; how models meet on the tree is the whole federation's."""
    from hansa.refusals import refuse, refuse_aggregation  # it looks at methods, which must be there first

    method = METHODS.build(federation.method)
    if node is not None and node.method is not None:
        own = METHODS.build(node.method)
        method = replace(own, tree=own.tree or method.tree)
    if isinstance(method.scope, Layers) and not method.scope.layers:
        method = replace(method, scope=of_added(federation.model))
    server = node.server if node is not None and node.server is not None else federation.server
    if server is not None:
        method = replace(method, server=server_optimiser(server))
    if federation.aggregate is not None:
        refuse_aggregation(federation, method)
        weigh, aggregate = aggregation(federation.aggregate)
        method = replace(method, weigh=weigh, aggregate=aggregate)
    if federation.upload.steps:
        method = replace(method, upload=upload.build(federation.upload))
    refuse(federation, method, node)
    return method
