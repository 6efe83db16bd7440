"""What silos claim about their size: claims are fixed when a run begins, and no claim outweighs a stated share.

A silo's weight follows from the number of samples that it claims, which no other node can count. Three bounds keep a
lie from deciding the mean. A silo states its samples in its data card before the first round; a later update that
claims more is refused. `participation.max_share` (s) bounds what any silo counts: N′ᵢ = min(Nᵢ, c), with the largest c
for which c ≤ s·Σ N′ⱼ over all children. Between organisations, a silo that claims more than `UNSTATED_SHARE` of all
samples is left out, unless max_share says how much it may count. Honest federations are often uneven (98% of the
samples in one language), so that there is no stricter default.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace

from hansa.core.messages import NodeId, Update
from hansa.core.participation import Child

MAX_COUNT = 1 << 53  # of bytes and rounds that a region reports
UNSTATED_SHARE = 0.99  # of all training samples, that one silo may claim where the federation file states no max_share


def largest_count(counts: Collection[int], share: float) -> int:
    """The largest c for which min(N, c) is at most ``share`` of Σ min(N, c).

    Where even equal counts exceed the share (fewer than 1/share silos), all count as many as the smallest.
    """
    ordered = sorted(counts, reverse=True)
    for capped in range(len(ordered)):
        rest, left = sum(ordered[capped:]), 1 - share * capped
        if left <= 0:
            break
        if capped == 0:
            if ordered[0] <= share * rest:
                return ordered[0]
        elif (count := int(share * rest / left)) >= ordered[capped]:
            return count
    return ordered[-1]


def bounded(children: Mapping[NodeId, Child], share: float | None) -> dict[NodeId, Child]:
    """The children with the number of samples that each may count at most."""
    if share is None or not children:
        return dict(children)
    most = largest_count([child.samples for child in children.values()], share)
    return {name: replace(child, counted=min(child.samples, most)) for name, child in children.items()}


def overclaim(update: Update, child: Child | None) -> str:
    """Why an update's claims are refused; empty if it claims no more samples than its silo did when the run began."""
    if update.below is not None:
        counts = [*update.below.sent.values(), *update.below.received.values()]
        rounds = [order.round for order in update.below.arrivals]
        if not all(0 <= count <= MAX_COUNT for count in counts) or not all(0 < n <= MAX_COUNT for n in rounds):
            return "its report on the nodes below it has a number of bytes or of a round that is out of range"
    if child is None or child.claimed is None or update.samples <= child.claimed:
        return ""
    return f"it claims {update.samples} samples, and it claimed {child.claimed} when the run began"


def counted(update: Update, child: Child | None) -> Update:
    """The update with the samples that it may count."""
    if child is None or child.counted is None or update.samples <= child.counted:
        return update
    return replace(update, samples=child.counted)


def outsized(claims: Mapping[NodeId, int]) -> dict[NodeId, str]:
    """The silo that claims more than `UNSTATED_SHARE` of all samples, with the reason why it is left out."""
    total = sum(claims.values())
    return {
        name: f"it claims {samples:,} training samples, {samples / total:.3%} of all; a silo with more than "
        f"{UNSTATED_SHARE:.0%} is left out unless participation.max_share states how much it may count"
        for name, samples in claims.items()
        if len(claims) > 1 and samples > UNSTATED_SHARE * total
    }
