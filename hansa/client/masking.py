"""Secure aggregation at the nodes of a process: silos that mask their updates, regions that mask their mean.

On a tree every inner node with silos below it aggregates under masks and learns only the sum of its silos. Where at
least three children take part at the level above, regions mask their means too. On a tree of models the backbone is
masked; key layers are combined by attention, which needs each child's, so they travel unmasked as a release of their
own (`layers` in a policy).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hansa.client.runtime import Runtime
from hansa.config.sections import SecureAggregation
from hansa.config.tree import protected
from hansa.core.hierarchy import KeyLayers
from hansa.core.messages import (
    AdvertiseKeys,
    Evaluate,
    Failure,
    LayersPart,
    NodeId,
    Reply,
    Request,
    RevealShares,
    Scores,
    ShareSecrets,
    Train,
    Update,
)
from hansa.core.method import weighs_equally
from hansa.core.tensors import Tensors, is_finite
from hansa.privacy.dp.distributed import SiloNoise
from hansa.privacy.secure_aggregation.client import MaskingClient
from hansa.privacy.secure_aggregation.limits import MaskingLimits
from hansa.privacy.secure_aggregation.memory import CohortMemory
from hansa.privacy.secure_aggregation.protocol import Refused
from hansa.privacy.secure_aggregation.scores import flatten

COVERING_NOISE = 0.3  # deviation of a silo's own noise over its clipping norm, from which it counts as noise at all
POISON = "the settings make silos send false updates ('simulate.poison'), which would leave one update in the sum"


def masking_client(
    runtime: Runtime, name: NodeId, home: Path, samples: int, data: str, scores: str = ""
) -> MaskingClient:
    """The client of a node; ``home``: its folder in this run, ``data``: a digest of its own data.

    ``scores``: of which evaluation the sum is (`Evaluate.masked_as`); empty: of updates.

    Between organisations, the memory of earlier sums lies beside the folders of the runs, and outlives them.
    """
    federation = runtime.federation
    settings = federation.secure_aggregation or SecureAggregation()
    limits = MaskingLimits.of(settings) if runtime.limits is None else runtime.limits.within(MaskingLimits.of(settings))
    deployed = runtime.signer is not None
    noisy = protected(federation).items()
    covered = {name for name, one in noisy if one.noise_multiplier / one.noise_shared_by >= COVERING_NOISE}
    if runtime.distributed is not None and runtime.distributed.multiplier >= COVERING_NOISE:
        covered |= set(federation.silos)  # every sum carries all of the noise, freshly drawn
    if scores:
        covered = set()  # noise is on updates alone
    if settings.metrics and weighs_equally(runtime.method.weighting):
        samples = 1  # the number of samples changes nothing, so it is not said
    memory = CohortMemory(runtime.folder.parent if deployed else home, data, limits.min_cohort, frozenset(covered))
    return MaskingClient(
        name,
        federation.name,
        home,
        samples,
        runtime.signer,
        runtime.method.weighting,
        settings.max_share,
        limits,
        memory,
        POISON if deployed and federation.simulate.poison else "",
        runtime.method.hierarchy is not None,
        scores,
    )


def noise_share(runtime: Runtime, name: NodeId) -> SiloNoise | None:
    """A silo's share of the noise of the sum; None if the federation file asks for none.

    Raises `Refused` where others could subtract it.
    """
    if runtime.distributed is None:
        return None
    if runtime.distributed.seeded and runtime.deployed:
        raise Refused("the noise would be drawn from the seed (secure_aggregation.noise.seeded), which others know")
    return SiloNoise(runtime.distributed, runtime.federation.seed, name)


def mask_update(
    client: MaskingClient,
    request: Train,
    update: Update,
    settings: SecureAggregation,
    keys: KeyLayers | None,
    noise: Callable[[], SiloNoise | None] = lambda: None,
) -> Reply:
    """The update under masks; on a tree of models whose ``keys`` travel, these beside it, unmasked.

    Where the settings say so, its loss and counts are masked too, and a share of the noise is added before.
    """
    sent, layers = update.gradient, update.layers
    if not is_finite(sent.flat):  # under a mask the server could not see it
        return Failure("its update has values that are not finite (NaN or Inf)")
    if keys is not None and sent.layout == keys.layout:
        layers = replace(layers or LayersPart(), keys=Tensors.of(keys.read(sent)))
        sent = sent.only(keys.backbone.names)
    try:
        numbers = [update.loss, update.seen, update.steps, update.seconds] if settings.metrics else []
        masked, part = client.mask(request, sent, settings.bound, noise(), numbers)
    except Refused as why:
        return Failure(f"it refuses: {why}")
    if settings.metrics:
        update = replace(update, samples=client.samples, loss=0.0, seen=0, steps=0, seconds=0.0)
    return replace(update, gradient=masked, masked=part, layers=layers)


def mask_scores(
    client: MaskingClient, request: Evaluate, names: Sequence[str], score: Callable[[Evaluate], Scores]
) -> Reply:
    """Scores under masks; ``names``: of the task's sums, ``score``: computes them once the request is checked."""
    if request.masking is None:
        return Failure("it refuses: its scores leave under masks, and the request asks for them without")
    try:
        client.check_scores(request)
        return Scores({}, client.mask_scores(request, flatten(score(request), names, request.parts)))
    except (Refused, ValueError) as why:
        return Failure(f"it refuses: {why}")


@dataclass(frozen=True)
class MaskedRegion:
    """A region below a node that aggregates under masks: it answers as a silo does, with the mean of its children.

    The weights of the parent's sum follow from the ``samples`` that all nodes below the region hold, also in a round in
    which some of them dropped out.
    """

    answer_plain: Callable[[Request], Reply]
    client: MaskingClient
    settings: SecureAggregation
    keys: KeyLayers | None

    def answer(self, request: Request) -> Reply:
        """The reply of the region; its update is masked."""
        match request:
            case AdvertiseKeys() | ShareSecrets() | RevealShares():
                return self.client.answer(request)
            case Train():
                try:
                    self.client.check(request)
                except Refused as why:
                    return Failure(f"it refuses: {why}")
                reply = self.answer_plain(replace(request, masking=None))
                if not isinstance(reply, Update):
                    return reply
                return mask_update(self.client, request, reply, self.settings, self.keys)
            case _:
                return self.answer_plain(request)
