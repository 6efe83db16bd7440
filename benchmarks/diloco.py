"""DiLoCo with 50 local steps and 4 bits in both directions, against synchronising every step on the same tokens.

The peer is synchronous data-parallel Adam: each silo sends the gradient of its batch in every step, and the server
takes the step (local SGD with learning rate 1, Adam at the server). Both see the same number of batches of the same
size and start from the same model; each has the settings, of a few, with which it ends best: the learning rate and, of
DiLoCo, the outer optimizer, that of the paper or one with less momentum, which suits runs of few rounds. Bytes are
those of the messages of training, as the ledger counts them; evaluation is not counted. The texts are chains in which a
word mostly determines the next one.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers
from _federations import tokenizer_of, words
from _figures import Figures

from hansa.config.file import parse
from hansa.core.seeds import stream
from hansa.runs.ledger import Ledger
from hansa.runs.run import run

SILOS, BATCH, LOCAL, ROUNDS, LENGTH = 2, 8, 50, 20, 24
RATES = {"synchronous": (1e-3, 3e-3, 1e-2), "diloco": (3e-4, 1e-3, 3e-3)}
OUTER = ({"lr": 0.7, "momentum": 0.9}, {"lr": 1.0, "momentum": 0.5})  # of the paper, and milder


def chains(file: Path, vocabulary: list[str], count: int, seed: int) -> str:
    """Texts in which a word is followed by its successor, or in one of four cases by any word."""
    rng = stream(seed, "chains")
    successor = stream(0, "successors").permutation(len(vocabulary))
    with file.open("w") as out:
        for _ in range(count):
            at, text = int(rng.integers(len(vocabulary))), []
            for _ in range(LENGTH):
                text.append(vocabulary[at])
                at = int(successor[at]) if rng.random() < 0.75 else int(rng.integers(len(vocabulary)))
            out.write(json.dumps({"text": " ".join(text)}) + "\n")
    return str(file)


def model_of(folder: Path, vocabulary: list[str], width: int, layers: int, positions: int = 64) -> Path:
    tokenizer = tokenizer_of(vocabulary, len(vocabulary) + 400)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=3 * width,
        max_position_embeddings=positions,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def arms(lr: float, local: int, rounds: int, outer: dict[str, float]) -> dict[str, dict[str, Any]]:
    """The settings of both arms: as many steps, on as many samples."""
    server = {"optimizer": "adam", "lr": lr, "betas": [0.9, 0.999]}
    gradients = {"optimizer": "sgd", "lr": 1.0, "batch": BATCH, "samples": {"floor": BATCH, "replace": False}}
    steps = {"optimizer": "adamw", "lr": lr, "batch": BATCH, "samples": {"floor": local * BATCH, "replace": False}}
    return {
        "synchronous": {"method": "fedavg", "server": server, "train": gradients, "rounds": local * rounds},
        "diloco": {
            "method": {"name": "diloco", **outer},
            "train": steps,
            "rounds": rounds,
            "upload": "int4",
            "download": "int4",
        },
    }


def measure(place: Path, common: dict[str, Any], settings: dict[str, Any]) -> tuple[float, int]:
    """The loss on held-out texts, and the bytes of training."""
    rounds = settings["rounds"]
    federation = parse(common | settings | {"evaluate": {"every": rounds}, "checkpoint": {"every": rounds}})
    result = run(federation, place, workers=0)
    ledger = Ledger(place)
    [[sent]] = ledger.select("select sum(sent) + sum(received) from traffic")
    ledger.close()
    losses = [metrics["loss"] for metrics in result.metrics.values()]
    return sum(losses) / len(losses), int(sent)


def main() -> None:
    torch.set_num_threads(1)
    figures = Figures.from_arguments()
    entries, width, layers, local, rounds, rows = (
        (60, 16, 1, 3, 2, 60) if figures.smoke else (200, 64, 2, LOCAL, ROUNDS, LOCAL * ROUNDS * BATCH)
    )
    found: dict[str, tuple[float, int]] = {}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        vocabulary = words(entries)
        files = {f"s{i}": chains(place / f"s{i}.jsonl", vocabulary, rows, i) for i in range(SILOS)}
        common = {
            "name": "diloco",
            "task": "causal-lm",
            "model": {"path": str(model_of(place / "model", vocabulary, width, layers))},
            "data": {"max_length": 48, "valid": 0.0, "test": 0.05},
            "silos": files,
        }
        tried = [("synchronous", lr, OUTER[0]) for lr in RATES["synchronous"]]
        tried += [("diloco", lr, outer) for outer in OUTER for lr in RATES["diloco"]]
        if figures.smoke:
            tried = [tried[0], tried[-1]]
        for number, (name, lr, outer) in enumerate(tried):
            loss, sent = measure(place / str(number), common, arms(lr, local, rounds, outer)[name])
            how = f", outer {outer['lr']:g} with momentum {outer['momentum']:g}" if name == "diloco" else ""
            print(f"{name}, learning rate {lr:g}{how}: loss {loss:.4f}, {sent / 1e6:,.2f} MB", flush=True)
            found[name] = min(found.get(name, (loss, sent)), (loss, sent))
    (loss, sent), (other, more) = found["diloco"], found["synchronous"]
    what = "bytes of synchronising every step against DiLoCo's, 50 local steps and 4 bits both ways"
    figures.add("diloco_bytes", what, more / sent, "times", ">=", 100.0)
    figures.add("diloco_loss", "its loss against the synchronous one, same tokens", loss / other, "ratio", "<=", 1.02)
    figures.end()


if __name__ == "__main__":
    main()
