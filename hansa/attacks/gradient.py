"""Gradient inversion: how many tokens can be recovered from one silo's update, without and with defences.

Two attacks recover tokens from an update θ − θᵢ; neither needs an optimizer:

    rows    a token's row of the embedding table moves only if the token was in the texts (or, where the table is also
            the output layer, moves most then): rank tokens by the norm of their row
    span    the gradient of a linear layer is Σ δₜ·xₜᵀ over its input vectors x, so it lies in their span, as long as
            there are fewer of them than its width: take the first such layers, whose inputs are known for every token
            and position, and rank tokens by the distance of their inputs from the span (Petrov et al., 2024, DAGER:
            its first step); it needs steps along the gradient: Adam's steps, which are its signs, hide the span

*Recovered* is the share of the distinct ordinary tokens of the texts that are among as many best-ranked tokens. The
baseline is what the most frequent tokens of the silo would reach: silos use few tokens often.

The update is computed anew from the run's common start, as round 1 would send it; the run is not changed.
"""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hansa.attacks.hits import MARGIN, Frequencies
from hansa.attacks.victim import embedding_table, token_types
from hansa.client.host import SiloHost
from hansa.client.release_log import logged_releases
from hansa.client.resident import ResidentSilo
from hansa.client.runtime import Runtime
from hansa.client.silo import Silo
from hansa.client.state import StateFolder
from hansa.config.nodes import leaves
from hansa.config.sections import Privacy, Upload
from hansa.core.errors import RunFailed, UserError, did_you_mean
from hansa.core.messages import Failure, Train
from hansa.core.model_parts import block_lists
from hansa.core.tensors import Tensors
from hansa.privacy.dp.accounting import epsilon
from hansa.privacy.dp.updates import UpdateMechanism
from hansa.runs.inference import open_run

CLIP = 1.0
NOISES = (0.001, 0.01, 0.1)  # multiples of the clipping norm
DELTA = 1e-5
CHUNK = 256
ROUNDING = 1.5  # most singular values are rounding errors: those above this multiple of the median are not


@dataclass(frozen=True)
class Defence:
    """A defence of updates: training fewer tensors, clipping, or clipping and noise."""

    name: str
    adapt: Literal["full", "frozen-embeddings", "lora"] = "full"
    clip: float | None = None
    noise: float = 0.0  # its standard deviation, as a multiple of the clipping norm


DEFENCES = (
    Defence("none"),
    Defence("frozen embeddings", adapt="frozen-embeddings"),
    Defence("LoRA", adapt="lora"),
    Defence(f"clipping to {CLIP:g}", clip=CLIP),
    *(Defence(f"clipping to {CLIP:g}, noise {z:g}×", clip=CLIP, noise=z) for z in NOISES),
)


@dataclass(frozen=True)
class UndefendedUpdate:
    """An update without a defence, the model that it started from, and the texts behind it."""

    amount: str
    tensors: dict[str, Tensor]
    model: Any
    texts: list[NDArray[np.int32]]
    types: int  # of tokens: see victim.py


def attack_update(run: Path, silo: str | None, say: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Attack the update of one silo, with every defence; return the findings as plain values.

    ``silo``: its name; None: the smallest silo. ``say`` gets a line of progress before each attack.
    """
    runtime = open_run(run)
    name = target_silo(runtime, silo)
    attackable(runtime, run)
    held, special = SiloHost(runtime).silo(name).resident.examples("train"), runtime.vocabulary.special
    frequencies = Frequencies((held[i] for i in range(len(held))), special)
    say(f"{name} trains on one text, one batch and one round: all tensors, all but the embeddings, LoRA")
    sent = {adapt: _updates(runtime, name, adapt) for adapt in dict.fromkeys(d.adapt for d in DEFENCES)}
    rows = []
    for defence in DEFENCES:
        say(f"attacking {name}, defence: {defence.name}")
        rows += [_read(one, defence, special, frequencies, runtime.federation.seed) for one in sent[defence.adapt]]
    found = {"kind": "gradient-inversion", "silo": name, "vocabulary": int((~special).sum()), "rows": rows}
    return found | {"reading": reading(found)}


def target_silo(runtime: Runtime, silo: str | None) -> str:
    """The silo to attack: the named one, or the smallest. Raises `UserError` for a name that the run does not have."""
    host, nodes = SiloHost(runtime), leaves(runtime.federation.silos)
    if silo is not None and silo not in nodes:
        raise UserError(f"--silo: the run has no silo '{silo}'; {did_you_mean(silo, nodes)}")
    return silo or min(nodes, key=lambda n: (len(host.silo(n).resident.examples("train")), n))


def attackable(runtime: Runtime, run: Path) -> None:
    """Raise `UserError` if the silos of a run send no plain updates."""
    if runtime.method.hierarchy is not None or not runtime.shared.names:
        raise UserError(
            f"{run}: with method '{runtime.method.name}' no silo sends a plain update; attack updates of a run of a "
            "flat federation (fedavg, fedprox, fedkc, …)"
        )


def _updates(runtime: Runtime, name: str, adapt: str) -> list[UndefendedUpdate]:
    """The silo's updates of round 1 without a defence: of one text, one batch and the whole round."""
    federation = runtime.federation
    silos = leaves(federation.silos)
    amounts: dict[str, dict[str, int]] = {
        "one text": {"batch": 1, "max_batches": 1},
        f"one batch of {federation.train.batch}": {"max_batches": 1},
        "one round": {},
    }
    changed = {
        "model": federation.model.model_copy(update={"adapt": adapt}),
        "release_log": federation.release_log.model_copy(update={"updates": True}),
        "silos": silos | {name: silos[name].model_copy(update={"privacy": None})},
        "upload": Upload(),
        "aggregate": None,
        "secure_aggregation": None,
    }
    found = []
    for amount, limits in amounts.items():
        training = federation.train.model_copy(update=limits)
        variant = federation.model_copy(update=changed | {"train": training})
        found.append(_update(Runtime(variant, runtime.folder), name, amount))
    return found


def _update(runtime: Runtime, name: str, amount: str) -> UndefendedUpdate:
    """Let the silo train in a temporary folder; return its update with the texts behind it."""
    with tempfile.TemporaryDirectory() as folder:
        node = runtime.federation.silos[name]
        silo = Silo(ResidentSilo(name, node, runtime, StateFolder(Path(folder) / "silos" / name / "memory")))
        shared = runtime.start.only(runtime.shared.names).copy()
        slot = runtime.method.shared_state
        state = slot.begin(shared.layout) if slot is not None else None
        reply = silo.answer(Train(1, shared, shared_state=state))
        if isinstance(reply, Failure):
            raise RunFailed(f"silo '{name}' sent no update that could be attacked: {reply.reason}")
        [released] = logged_releases(Path(folder), "update")
        held = silo.resident.examples("train")
        texts = [held[i] for i in dict.fromkeys(released.notes["samples"])]
        runtime.learner.state.write(shared)  # the model that the attacker has
        return UndefendedUpdate(amount, released.tensors, runtime.learner.model, texts, token_types(runtime))


def _read(
    sent: UndefendedUpdate, defence: Defence, special: NDArray[np.bool_], known: Frequencies, seed: int
) -> dict[str, Any]:
    """The share of an update's tokens that each attack recovers, with a defence."""
    update = sent.tensors
    if defence.clip is not None:
        update = clipped(update, defence.clip, defence.noise, seed)
    true = {int(token) for text in sent.texts for token in text if not special[token]}
    guesses = {
        "rows": rank_by_rows(update, sent.model, special),
        "span": rank_by_span(update, sent.model, special, max(map(len, sent.texts)), sent.types),
        "frequent": [token for token, _ in known.total.most_common(len(true))],
    }
    return {
        "defence": defence.name,
        "amount": sent.amount,
        "texts": len(sent.texts),
        "tokens": len(true),
        "epsilon": epsilon(defence.noise, 1, DELTA) if defence.noise else None,
        **{kind: recovered(ranked, true) for kind, ranked in guesses.items()},
    }


def clipped(update: dict[str, Tensor], clip: float, noise: float, seed: int) -> dict[str, Tensor]:
    """The update clipped to a norm and, with noise, protected as a silo with `privacy` would (dp/updates.py)."""
    whole = Tensors.of(update)
    if noise:
        UpdateMechanism(Privacy(clip=clip, noise_multiplier=noise, seeded=True)).apply(whole.flat, None, seed, "audit")
    else:
        whole.flat.mul_(min(1.0, clip / max(float(whole.flat.norm()), 1e-30)))
    return whole.named()


def recovered(ranked: Sequence[int] | None, true: set[int]) -> float | None:
    """The share of the true tokens among as many best-ranked ones; None if the attack does not apply to the update."""
    return None if ranked is None else len(set(ranked[: len(true)]) & true) / max(1, len(true))


def rank_by_rows(update: dict[str, Tensor], model: Any, special: NDArray[np.bool_]) -> list[int] | None:
    """Rank tokens by how far their rows of the embedding table moved; None if the update has no such table."""
    table = model.get_input_embeddings().weight
    name = next((n for n, p in model.named_parameters() if p is table), "")
    if name not in update:
        return None
    norms = update[name][: len(special)].norm(dim=1)
    norms[torch.from_numpy(special)] = 0.0
    moved = int((norms > 0).sum())
    return list(norms.argsort(descending=True, stable=True)[:moved].tolist())


def rank_by_span(
    update: dict[str, Tensor], model: Any, special: NDArray[np.bool_], length: int, types: int = 1
) -> list[int] | None:
    """Rank tokens by their distance from the span of the first layers' gradients; None if the update has none."""
    linears = [name for name in _first_linears(model) if f"{name}.weight" in update]
    if not linears:
        return None
    gradients = torch.cat([update[f"{name}.weight"] for name in linears])
    _, sizes, directions = torch.linalg.svd(gradients, full_matrices=False)
    span = directions[sizes > ROUNDING * sizes.median()]
    table = embedding_table(model, len(special), types)
    distances = []
    for start in range(0, len(table), CHUNK):
        x = input_of(model, linears[0], table[start : start + CHUNK].unsqueeze(1).expand(-1, length, -1))
        rest = x - x @ span.T @ span
        distances.append((rest.norm(dim=-1) / x.norm(dim=-1)).min(dim=1).values)
    distance = torch.cat(distances).view(-1, len(special)).amin(dim=0).masked_fill(torch.from_numpy(special), torch.inf)
    return list(distance.argsort(stable=True)[: int((~special).sum())].tolist())


def _first_linears(model: Any) -> list[str]:
    """The linear layers with the same input as the first one: query, key and value of the first attention."""
    block = f"{block_lists(model)[0]}.0."
    found = [n for n, m in model.named_modules() if n.startswith(block) and isinstance(m, nn.Linear)]
    tokens = model.get_input_embeddings().weight.detach()[:2].unsqueeze(0)
    first = input_of(model, found[0], tokens)
    return [n for n in found if torch.equal(input_of(model, n, tokens), first)]


def input_of(model: Any, name: str, tokens: Tensor) -> Tensor:
    """The input of the named module, for texts given as token embeddings."""
    passed: list[Tensor] = []
    module = model.eval().get_submodule(name)
    handle = module.register_forward_pre_hook(lambda _module, args: passed.append(args[0]))
    try:
        with torch.no_grad():
            model(inputs_embeds=tokens, attention_mask=torch.ones(tokens.shape[:2], dtype=torch.long))
    finally:
        handle.remove()
    return passed[0]


def reading(found: dict[str, Any]) -> list[str]:
    """What the findings mean, in sentences."""
    first = found["rows"][0]
    best = {
        row["defence"]: max(row["rows"] or 0.0, row["span"] or 0.0)
        for row in reversed(found["rows"])
        if row["amount"] == first["amount"]
    }
    lines = [
        f"From an update of {found['silo']} trained on one text, {best['none']:.1%} of its {first['tokens']} distinct "
        f"tokens can be recovered; guessing the most frequent tokens gives {first['frequent']:.1%}."
    ]
    if first["frequent"] > 1 - 2 * MARGIN:
        return [*lines, "The text has too few distinct tokens to compare defences: attack longer texts."]
    weak = [name for name, share in reversed(best.items()) if name != "none" and share > first["frequent"] + MARGIN]
    strong = [name for name in reversed(best) if name != "none" and name not in weak]
    if weak:
        lines.append(f"These defences do not prevent it: {'; '.join(weak)}.")
    if strong:
        lines.append(
            f"With these defences the attacks recover no more than the most frequent tokens give: {'; '.join(strong)}."
        )
    lines.append("Other attacks may recover more: a defence that withstands these two is not proven to be safe.")
    return lines
