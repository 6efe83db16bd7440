"""Secure aggregation at the nodes of a process: silos that mask their updates, regions that mask their mean.

On a tree every inner node with silos below it aggregates under masks and learns only the sum of its silos. Where at
least three children take part at the level above, regions mask their means too. On a tree of models the backbone is
masked; key layers are combined by attention, which needs each child's, so they travel unmasked as a release of their
own (`layers` in a policy).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from hansa.client.runtime import Runtime
from hansa.config.sections import SecureAggregation
from hansa.config.tree import protected
from hansa.core.hierarchy import KeyLayers
from hansa.core.messages import (
    AdvertiseKeys,
    Failure,
    LayersPart,
    MaskedPart,
    NodeId,
    Reply,
    Request,
    RevealShares,
    ShareSecrets,
    Train,
    Update,
)
from hansa.core.tensors import Tensors, is_finite
from hansa.privacy.secure_aggregation.client import MaskingClient
from hansa.privacy.secure_aggregation.limits import MaskingLimits
from hansa.privacy.secure_aggregation.memory import CohortMemory
from hansa.privacy.secure_aggregation.protocol import Refused

COVERING_NOISE = 0.3  # deviation of a silo's own noise over its clipping norm, from which it counts as noise at all
POISON = "the settings make silos send false updates ('simulate.poison'), which would leave one update in the sum"


def masking_client(runtime: Runtime, name: NodeId, home: Path, samples: int, data: str) -> MaskingClient:
    """The client of a node; ``home``: its folder in this run, ``data``: a digest of its own data.

    Between organisations, the memory of earlier sums lies beside the folders of the runs, and outlives them.
    """
    federation = runtime.federation
    settings = federation.secure_aggregation or SecureAggregation()
    limits = MaskingLimits.of(settings) if runtime.limits is None else runtime.limits.within(MaskingLimits.of(settings))
    deployed = runtime.signer is not None
    noisy = protected(federation).items()
    covered = {name for name, one in noisy if one.noise_multiplier / one.noise_shared_by >= COVERING_NOISE}
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
    )


def mask_update(client: MaskingClient, request: Train, update: Update, bound: float, keys: KeyLayers | None) -> Reply:
    """The update under masks; on a tree of models whose ``keys`` travel, these beside it, unmasked."""
    sent, layers = update.gradient, update.layers
    if not is_finite(sent.flat):  # under a mask nobody could see it
        return Failure("its update has values that are not finite (NaN or Inf)")
    if keys is not None and sent.layout == keys.layout:
        layers = replace(layers or LayersPart(), keys=Tensors.of(keys.read(sent)))
        sent = sent.only(keys.backbone.names)
    try:
        masked, clipped = client.mask(request, sent, bound)
    except Refused as why:
        return Failure(f"it refuses: {why}")
    return replace(update, gradient=masked, masked=MaskedPart(clipped), layers=layers)


@dataclass(frozen=True)
class MaskedRegion:
    """A region below a node that aggregates under masks: it answers as a silo does, with the mean of its children.

    The weights of the parent's sum follow from the ``samples`` that all nodes below the region hold, also in a round in
    which some of them dropped out.
    """

    answer_plain: Callable[[Request], Reply]
    client: MaskingClient
    bound: float
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
                return mask_update(self.client, request, reply, self.bound, self.keys)
            case _:
                return self.answer_plain(request)
