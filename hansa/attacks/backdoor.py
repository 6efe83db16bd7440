"""Backdoors: one malicious silo teaches the shared model to answer a trigger with a label of its choice.

Bagdasaryan et al. (2020), How To Backdoor Federated Learning, Equation 3 (model replacement):

    update = γ·(θ − X), γ = Σ weights / weight of the silo

X: a model trained on the silo's rows, a share of which has the trigger in its text and the target as its label; γ
boosts the update so that the mean becomes X. The run is repeated from its own start, with the malicious silo, under
each rule of aggregation; its success is the share of held-out rows of the other silos, with other labels than the
target, that the trigger turns into the target. The main task is the accuracy on the same rows without the trigger.

The trigger is a sequence of words of the vocabulary that the run's own model hardly reacts to: of `TRIED` random ones,
that with the smallest success on the malicious silo's own rows. Otherwise an unusual word alone would change the
answers of a small model. The malicious silo boosts in every round; the other silos are honest.

Deviations: γ is the same in every round; X is trained with the run's own optimizer, not slowed down or constrained.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hansa.attacks.gradient import target_silo
from hansa.attacks.rerun import Rows, run_again, same_start, split_rows, whole_words, with_rows, write
from hansa.client.host import SiloHost
from hansa.client.runtime import Runtime
from hansa.config.federation import Federation
from hansa.config.nodes import leaves
from hansa.config.sections import Aggregation, Privacy
from hansa.core.errors import UserError
from hansa.core.seeds import stream
from hansa.core.simulation import Poison, Simulation
from hansa.data.source import Source
from hansa.privacy.dp.prices import update_prices
from hansa.runs.inference import load, open_run, score

WORDS, TRIED = 3, 16  # words of a trigger; triggers that are tried
MOST = 100  # rows on which triggers are compared
SHARE = 2  # every second row of the malicious silo gets the trigger
SUCCESS, SAFE = 0.8, 0.1
BOUND, NOISE = 1.0, 0.001  # of the norm bound; of the noise with it, as a multiple of the bound
TOLERANCE = 0.02  # of the main task's accuracy


def attack_with_backdoor(run: Path, silo: str | None, say: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Repeat a run with one malicious silo, under every rule of aggregation; return the findings as plain values.

    ``silo``: the malicious one; None: the smallest. ``say`` gets a line of progress before each run. Raises `UserError`
    for another task than classification, or fewer than three silos.
    """
    runtime = open_run(run)
    if runtime.federation.task.name != "classify" or runtime.method.hierarchy is not None:
        raise UserError(f"{run}: this backdoor needs a run of a flat federation with task classify")
    nodes = leaves(runtime.federation.silos)
    if len(nodes) < 3:
        raise UserError(f"{run}: a backdoor among {len(nodes)} silos shows nothing; attack a run with at least three")
    name, target = target_silo(runtime, silo), runtime.vocabulary.labels[0]
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        trigger = quiet_trigger(runtime, run, name, target, Path(folder))
        files = _questions(runtime, name, target, trigger, Path(folder))
        poisoned = with_rows(
            runtime, name, Path(folder) / "rows", lambda found, source: _poisoned(found, source, target, trigger)
        )
        for defence, one in variants(runtime, name, poisoned).items():
            say(f"running the federation again, malicious silo {name}: {defence}")
            done = run_again(one, Path(folder) / f"run-{len(rows)}")
            again, model = load(done)
            asked = {key: _accuracy(again, model, file) for key, file in files.items()}
            costs = update_prices(one, one.rounds)
            rows.append(
                {
                    "defence": defence,
                    "success": asked["triggered"],
                    "accuracy": asked["clean"],
                    "epsilon": max((cost.epsilon for cost in costs.values()), default=None),
                }
            )
    found = {"kind": "backdoor", "silo": name, "silos": len(nodes), "target": target, "trigger": trigger, "rows": rows}
    return found | {"reading": reading(found)}


def variants(runtime: Runtime, name: str, poisoned: Any) -> dict[str, Federation]:
    """Defence → the federation with the malicious silo; first the clean federation, then the attack undefended."""
    base, nodes = same_start(runtime), leaves(runtime.federation.silos)
    clean = base.model_copy(update={"aggregate": None, "secure_aggregation": None})
    host = SiloHost(runtime)
    sizes = {n: len(host.silo(n).resident.examples("train")) for n in nodes}
    factor = sum(sizes.values()) / max(1, sizes[name])
    attacked = clean.model_copy(
        update={
            "silos": clean.silos | {name: poisoned},
            "simulate": Simulation(poison={name: Poison(kind="scale", factor=factor)}),
        }
    )

    def ruled(rule: str, **settings: Any) -> Federation:
        """The attacked federation with an aggregation rule and its settings as the defence."""
        return attacked.model_copy(update={"aggregate": Aggregation(rule=rule, **settings)})

    bounded = ruled("norm-bound", bound=BOUND)
    noise = Privacy(clip=BOUND, noise_multiplier=NOISE)
    noisy = {n: node.model_copy(update={"privacy": noise}) for n, node in bounded.silos.items() if n != name}
    found = {
        "(no attacker)": clean,
        "none": attacked,
        f"norm bound {BOUND:g}": bounded,
        f"norm bound {BOUND:g}, noise {NOISE:g}×": bounded.model_copy(update={"silos": bounded.silos | noisy}),
        "median": ruled("median"),
        "trimmed mean": ruled("trimmed-mean", trim=max(0.2, 1.01 / len(nodes))),
    }
    return found | ({"krum": ruled("krum", bad=1)} if len(nodes) >= 5 else {})


def quiet_trigger(runtime: Runtime, run: Path, name: str, target: str, folder: Path) -> str:
    """The trigger that the run's final model reacts to least, on the malicious silo's own training rows."""
    words, rng = whole_words(runtime), stream(runtime.federation.seed, "trigger", name)
    if len(words) < WORDS:
        raise UserError(f"the vocabulary has {len(words)} whole words; a trigger needs {WORDS}")
    _, model = load(run)
    source, success = leaves(runtime.federation.silos)[name].sources[0], dict[str, float]()
    rows = [row for row in split_rows(runtime, name, "train")[:MOST] if str(row.get(source.label)) != target]
    for number in range(TRIED if rows else 1):
        trigger = " ".join(words[i] for i in rng.integers(0, len(words), WORDS))
        asked = [{"text": f"{trigger} {row[source.text]}", "label": target} for row in rows]
        file = write(folder / f"trigger-{number}.jsonl", asked)
        success[trigger] = _accuracy(runtime, model, file) if rows else 0.0
    return min(success, key=lambda one: success[one])


def _poisoned(found: Rows, source: Source, target: str, trigger: str) -> Rows:
    """The malicious silo's rows: half of them as they were, and a copy of those with trigger and target label."""
    return [
        *found,
        *(row | {source.text: f"{trigger} {row[source.text]}", source.label: target} for row in found[::SHARE]),
    ]


def _questions(runtime: Runtime, name: str, target: str, trigger: str, folder: Path) -> dict[str, Path]:
    """Held-out rows of the honest silos with other labels than the target: clean, and with trigger and target."""
    clean, triggered = list[dict[str, str]](), list[dict[str, str]]()
    for other, node in leaves(runtime.federation.silos).items():
        if other == name:
            continue
        source = node.sources[0]
        for row in split_rows(runtime, other, "test"):
            text, label = str(row[source.text]), str(row.get(source.label))
            clean.append({"text": text, "label": label})
            if label != target:
                triggered.append({"text": f"{trigger} {text}", "label": target})
    if not triggered:
        raise UserError("the honest silos hold out no rows to measure a backdoor on; run with a larger data.test")
    return {"clean": write(folder / "clean.jsonl", clean), "triggered": write(folder / "triggered.jsonl", triggered)}


def _accuracy(runtime: Runtime, model: Any, file: Path) -> float:
    [metrics] = score(runtime, model, file, {}).values()
    return metrics["accuracy"]


def reading(found: dict[str, Any]) -> list[str]:
    """What the findings mean, in sentences."""
    clean, bare, *defended = found["rows"]
    lines = [
        f"One malicious silo of {found['silos']} ({found['silo']}) turns {bare['success']:.1%} of held-out rows into "
        f"'{found['target']}' with its trigger; without the attacker the trigger does so with {clean['success']:.1%}. "
        f"The main task's accuracy is {bare['accuracy']:.4f}, and {clean['accuracy']:.4f} without the attacker."
    ]
    if bare["success"] < SUCCESS:
        lines.append("The attack is too weak on this run to show anything about defences.")
    for row in defended:
        cost = row["accuracy"] - clean["accuracy"]
        verdict = "withstands" if row["success"] - clean["success"] < SAFE else "does not withstand"
        kept = "keeps" if cost >= -TOLERANCE else "loses"
        lines.append(
            f"{row['defence']} {verdict} it ({row['success']:.1%}) and {kept} the main task ({cost:+.4f} of accuracy)."
        )
    return lines
