"""From a federation file to a `Method`: the named paper, then the slots that the file fills itself."""

from dataclasses import replace

from hansa import compressors, methods  # noqa: F401  they register themselves
from hansa.config.compatibility import check_slots, refuse, refuse_aggregation
from hansa.config.federation import Federation
from hansa.config.nodes import Node
from hansa.config.sections import Download, Server, Upload, Weights
from hansa.core.compression import COMPRESSORS, KINDS, Compression, Compressor, CompressorChain, NoCompression
from hansa.core.errors import ConfigError
from hansa.core.method import AGGREGATORS, METHODS, FactorRule, Method, ServerOptimizer, Weighting
from hansa.methods.controllers import SharedLayers, added_layers
from hansa.methods.dga import ByLoss
from hansa.methods.fedavg import BySamples, ServerSgd
from hansa.methods.fedex_lora import ExactFactors
from hansa.methods.fedopt import Adaptive, Momentum, Nesterov
from hansa.methods.flora import StackedFactors

FACTOR_RULES: dict[str, FactorRule] = {"exact": ExactFactors(), "stack": StackedFactors()}  # by model.lora.aggregate


def build_method(federation: Federation, node: Node | None = None) -> Method:
    """Return the method that a federation file asks for.

    A ``node`` may have a method and a server optimizer of its own; how models are combined on a tree is the whole
    federation's. Raises `ConfigError` for a method that is not known, and for combinations that make no sense.
    """
    method = METHODS.build(federation.method)
    if node is not None and node.method is not None:
        own = METHODS.build(node.method)
        method = replace(own, hierarchy=own.hierarchy or method.hierarchy)
    check_slots(method)
    if isinstance(method.scope, SharedLayers) and not method.scope.layers:
        method = replace(method, scope=added_layers(federation.model.added))
    server = node.server if node is not None and node.server is not None else federation.server
    if server is not None:
        method = replace(method, server=server_optimizer(server))
    if federation.aggregate is not None:
        refuse_aggregation(federation, method)
        aggregator = AGGREGATORS.build(federation.aggregate.named)
        method = replace(method, aggregator=aggregator)
        if federation.aggregate.weights is not None:
            method = replace(method, weighting=weighting(federation.aggregate.weights))
    if federation.upload.steps:
        method = replace(method, upload=build_upload(federation.upload, federation.train.overlap))
    if federation.download.steps:
        method = replace(method, download=build_download(federation.download))
    if federation.train.overlap:
        method = replace(method, overlaps=True)
    if federation.model.adapt == "lora" and federation.model.lora.aggregate in FACTOR_RULES:
        method = replace(method, factors=FACTOR_RULES[federation.model.lora.aggregate])
    refuse(federation, method, node)
    return method


def server_optimizer(server: Server) -> ServerOptimizer:
    """The server optimizer that a ``server`` section describes."""
    if server.optimizer == "sgd":
        return ServerSgd(server.lr)
    if server.optimizer == "momentum":
        return Momentum(server.lr, server.momentum)
    if server.optimizer == "nesterov":
        return Nesterov(server.lr, server.momentum)
    return Adaptive(server.optimizer, server.lr, server.betas, server.eps, server.bias_correction)


def weighting(weights: Weights) -> Weighting:
    """The weighting that an ``aggregate.weights`` section describes."""
    if weights.by == "loss":
        return ByLoss(weights.temperature)
    return BySamples(weights.temperature if weights.by == "samples" else 0.0)


def build_download(settings: Download) -> tuple[Compressor, ...]:
    """The compressors that a ``download`` section names; raises `ConfigError` for one that chooses tensors."""
    chain = tuple(COMPRESSORS.build(named) for named in settings.steps)
    kinds = [KINDS.index(one.kind) for one in chain]
    for named, one in zip(settings.steps, chain, strict=True):
        if one.kind == "tensors":
            raise ConfigError(
                f"download: '{named.name}' chooses tensors, and what did not move is not sent anyway: use int8, int4, "
                "int2, bf16 or top-k"
            )
    if kinds != sorted(set(kinds)):
        raise ConfigError("download: name at most one choice of values and then one encoding of numbers: 'top-k+int8'")
    return chain


def build_upload(settings: Upload, overlap: bool = False) -> Compression:
    """The compression that an ``upload`` section describes; raises `ConfigError` for an order that makes no sense."""
    chain = tuple(COMPRESSORS.build(named) for named in settings.steps)
    order = [KINDS.index(one.kind) for one in chain]
    for i in range(1, len(chain)):
        first, second = settings.steps[i - 1].name, settings.steps[i].name
        if order[i] < order[i - 1]:
            raise ConfigError(
                f"upload: '{second}' stands after '{first}': choose tensors first, then values, then how numbers are "
                f"written, so write '{second}' before '{first}'"
            )
        if order[i] == order[i - 1] and (first == second or KINDS[order[i]] != "values"):
            raise ConfigError(f"upload: '{first}' and '{second}' both decide about {KINDS[order[i]]}: keep one of them")
    if not chain:
        return NoCompression()
    upload = CompressorChain(chain, settings.feedback)
    if upload.both_ways and upload.lossy and not overlap:
        raise ConfigError(
            f"upload: with 'both' tensors travel that the silo does not know the server's value of, and "
            f"'{settings.steps[-1].name}' is made for differences: leave one of the two out"
        )
    return upload
