"""What `hansa check` states about secure aggregation: capped weights, and what stays unmasked on a tree."""

from hansa.config.nodes import Node
from hansa.preview.preview import preview
from hansa.privacy.policy.disclosures import disclosures
from tests.conftest import Build


def test_capped_weights_are_stated(federation: Build) -> None:
    sizes = {"north": 300, "south": 40, "east": 30}
    seen = preview(federation(sizes=sizes, secure_aggregation=True))
    assert {silo.name: silo.weight for silo in seen.silos}["north"] == 0.4
    assert any("north would have" in line and "gives a silo 40% at most" in line for line in seen.warnings)
    plain = preview(federation(sizes=sizes))
    assert ({silo.name: silo.weight for silo in plain.silos}["north"] or 0.0) > 0.5
    assert not any("secure aggregation" in line for line in plain.warnings)
    even = preview(federation(sizes=sizes, secure_aggregation=True, aggregate={"weights": "uniform"}))
    assert not any("secure aggregation" in line for line in even.warnings)


def test_what_stays_unmasked_on_a_tree_is_stated(federation: Build) -> None:
    names = [f"{word}-{number}" for number in range(3) for word in ("north", "south", "east")]
    flat = federation(sizes=dict.fromkeys(names, 20), task="causal-lm", method="worldlm", secure_aggregation=True)

    def stated(regions: int) -> str:
        parts = {f"r{i}": Node(silos={n: flat.silos[n] for n in names[3 * i : 3 * i + 3]}) for i in range(regions)}
        return "\n".join(disclosures(flat.model_copy(update={"silos": parts})))

    assert "Each of r0, r1 aggregates its silos under masks, and its mean goes up unmasked" in stated(2)
    assert "goes up unmasked" not in stated(3)
    for regions in (2, 3):
        assert "Key layers travel unmasked" in stated(regions)
        assert "may be forwarded to other nodes" not in stated(regions)


def test_a_mixture_is_stated(federation: Build) -> None:
    flat = federation(task="causal-lm", method="worldlm")
    tree = flat.model_copy(update={"silos": {"west": Node(mixture=True, silos=flat.silos)}})
    assert any("'west' trains on the text of all silos below it" in line for line in disclosures(tree))
    assert not any("trains on the text" in line for line in disclosures(flat))
