"""What a silo's policy costs: requests that are approved, checked, charged and logged, against the same work without.

One silo with a model of ten million parameters and 20 local steps with noise on the update. The guarded silo checks
every request and model, charges its privacy budget and writes its audit log; the other one only works. They take turns.
"""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import torch
import yaml
from _federations import federation, model_folder, silos, tokenizer_of, words
from _figures import Figures

from hansa.client.host import SiloHost
from hansa.client.runtime import Runtime
from hansa.config.federation import Federation
from hansa.core.messages import Reply, Request, Train, Update
from hansa.core.tensors import Tensors
from hansa.links.local import LocalLink
from hansa.runs.callbacks import RunEvents
from hansa.runs.directory import RunDirectory
from hansa.runs.ledger import Ledger
from hansa.runs.start import begin, describe

STEPS, BATCH, LENGTH, ROUNDS = 20, 16, 32, 5
RULE = {"federations": "any", "methods": "any", "release": {"tensors": "any", "samples": True, "metrics": True}}
POLICY = {"rules": {"all": RULE}, "budget": {"epsilon": 1e6}, "limits": {"max_model_step": 10, "max_model_drift": 10}}


def answers(settings: Federation, folder: Path) -> tuple[Callable[[Request], Reply], Tensors]:
    """How the silo of a federation answers from outside, and the start."""
    directory = RunDirectory.create(settings, folder, False)
    ledger = Ledger(directory.path)
    host = SiloHost(Runtime(settings, directory.path))
    link = LocalLink(host.answer)
    begin(settings, directory, link, ledger, RunEvents())
    describe(settings, directory, link, ledger, RunEvents())
    ledger.close()
    return host.answer("s0"), host.runtime.start.copy()


def main() -> None:
    torch.set_num_threads(1)
    figures = Figures.from_arguments()
    layers, width, entries, rounds = (1, 32, 300, 1) if figures.smoke else (10, 256, 8000, ROUNDS)
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        os.environ["HANSA_CACHE"] = str(root / "cache")
        vocabulary = words(entries)
        tokenizer = tokenizer_of(vocabulary, entries)
        plain = federation(
            silos(root / "data", 1, 8 * STEPS * BATCH, LENGTH, vocabulary),
            model_folder(root / "model", tokenizer, layers, width, 4, LENGTH),
            LENGTH,
            rounds=100,
            train={"optimizer": "adamw", "lr": 1e-4, "batch": BATCH, "samples": {"floor": STEPS * BATCH}},
        )
        (root / "policy.yaml").write_text(yaml.safe_dump(POLICY))
        private = {"privacy": {"noise_multiplier": 1.0, "clip": 1.0, "seeded": True}}
        node = plain.silos["s0"].model_dump(mode="json") | private
        raw = plain.model_dump(mode="json")
        bare = Federation.model_validate(raw | {"silos": {"s0": node}})
        held = Federation.model_validate(raw | {"silos": {"s0": node | {"policy": str(root / "policy.yaml")}}})
        sides = {name: answers(one, root / name) for name, one in (("bare", bare), ("held", held))}
        seconds = dict.fromkeys(sides, float("inf"))
        models = {name: start for name, (_, start) in sides.items()}
        for number in range(1, rounds + 1):
            for name, (answer, _) in sides.items():
                began = perf_counter()
                update = answer(Train(number, models[name]))
                seconds[name] = min(seconds[name], perf_counter() - began)
                assert isinstance(update, Update), update
                models[name] = Tensors(models[name].layout, models[name].flat - 1e-3 * update.gradient.flat)
        size = models["bare"].layout.size
    print(f"{size:,} parameters: {seconds['bare']:.3f} s without a policy, {seconds['held']:.3f} s with it")
    what = "a silo's round of 20 steps with policy, budget and audit log against the bare one, 10M parameters"
    figures.add("guarded_round_vs_bare", what, seconds["held"] / seconds["bare"], "ratio", "<=", 1.05)
    figures.end()


if __name__ == "__main__":
    main()
