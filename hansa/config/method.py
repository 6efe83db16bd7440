"""From a federation file to a `Method`: the named paper, then the slots that the file fills itself."""

from dataclasses import replace

from hansa import compressors, methods  # noqa: F401  they register themselves
from hansa.config.compatibility import refuse, refuse_aggregation
from hansa.config.federation import Federation
from hansa.config.nodes import Node
from hansa.config.sections import Upload as UploadSettings
from hansa.core.compression import COMPRESSORS, KINDS, Compression, CompressorChain, NoCompression
from hansa.core.errors import ConfigError
from hansa.core.method import METHODS, Method
from hansa.methods.controllers import Layers, of_added
from hansa.methods.fedopt import server_optimizer
from hansa.methods.robust import aggregation


def build_method(federation: Federation, node: Node | None = None) -> Method:
    """The method a federation file asks for: the named paper, then the slots the file fills itself. A ``node`` may have
    a method and a server of its own; how models meet on the tree is the whole federation's."""
    method = METHODS.build(federation.method)
    if node is not None and node.method is not None:
        own = METHODS.build(node.method)
        method = replace(own, tree=own.tree or method.tree)
    if isinstance(method.scope, Layers) and not method.scope.layers:
        method = replace(method, scope=of_added(federation.model))
    server = node.server if node is not None and node.server is not None else federation.server
    if server is not None:
        method = replace(method, server=server_optimizer(server))
    if federation.aggregate is not None:
        refuse_aggregation(federation, method)
        weighting, aggregate = aggregation(federation.aggregate)
        method = replace(method, weigh=weighting, aggregate=aggregate)
    if federation.upload.steps:
        method = replace(method, upload=build_upload(federation.upload))
    refuse(federation, method, node)
    return method


def build_upload(settings: UploadSettings) -> Compression:
    """The upload a federation file asks for; steps in an order that makes no sense are refused."""
    steps = tuple(COMPRESSORS.build(named) for named in settings.steps)
    order = [KINDS.index(step.kind) for step in steps]
    for i in range(1, len(steps)):
        first, second = settings.steps[i - 1].name, settings.steps[i].name
        if order[i] < order[i - 1]:
            raise ConfigError(
                f"upload: '{second}' stands after '{first}': choose tensors first, then values, then how numbers are "
                f"written, so write '{second}' before '{first}'"
            )
        if order[i] == order[i - 1] and (first == second or KINDS[order[i]] != "values"):
            raise ConfigError(f"upload: '{first}' and '{second}' both decide about {KINDS[order[i]]}: keep one of them")
    if not steps:
        return NoCompression()
    upload = CompressorChain(steps, settings.feedback)
    if upload.both and upload.codes:
        raise ConfigError(
            f"upload: with 'both' tensors travel that the silo does not know the federation's value of, and "
            f"'{settings.steps[-1].name}' is made for differences: leave one of the two out"
        )
    return upload
