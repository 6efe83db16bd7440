"""One federated round of LoRA on a model of a billion parameters, between a coordinator and two silos on this machine.

All three are processes as operators start them (`hansa serve`, `hansa join`). The base has fresh weights in bfloat16
and does not travel; each process has its own copy in memory. The peak of each process's private memory is watched from
outside and held against what `hansa check --resources` predicts for a silo.
"""

import os
import tempfile
import threading
from pathlib import Path
from time import sleep
from typing import Any

import torch
import transformers
from _agents import federation_of, wait_for_the_end
from _federations import silos, tokenizer_of, words
from _figures import Figures

from hansa.config.file import parse
from hansa.preview.preview import preview
from hansa.runs.ledger import Ledger

LENGTH, BATCH = 32, 1


def base(folder: Path, smoke: bool) -> Path:
    """A causal model with fresh weights in bfloat16: 1.0 billion parameters, or a tiny one."""
    vocabulary = words(500)
    tokenizer = tokenizer_of(vocabulary, 600)
    layers, width, inner, entries = (2, 64, 128, len(tokenizer)) if smoke else (22, 2048, 5632, 16000)
    config = transformers.LlamaConfig(
        vocab_size=entries,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        num_key_value_heads=max(1, width // 512),
        intermediate_size=inner,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        dtype=torch.bfloat16,
    )
    torch.set_default_dtype(torch.bfloat16)
    try:
        model: Any = transformers.LlamaForCausalLM(config)
    finally:
        torch.set_default_dtype(torch.float32)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters", flush=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def private(pid: int) -> int:
    """Private memory of a process, in bytes; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon", "RssShmem")))


def main() -> None:
    figures = Figures.from_arguments()
    with tempfile.TemporaryDirectory(dir=os.environ.get("HANSA_BENCH_DISK")) as folder:
        place = Path(folder)
        files = silos(place / "data", 2, 8, 40, words(500))
        model = base(place / "base", figures.smoke)
        settings = parse(
            {
                "name": "billion",
                "task": "causal-lm",
                "model": {"path": str(model), "adapt": "lora", "lora": {"rank": 8}},
                "data": {"max_length": LENGTH, "valid": 0.0, "test": 0.0},
                "silos": files,
                "rounds": 1,
                "train": {
                    "optimizer": "adamw",
                    "lr": 1e-4,
                    "batch": BATCH,
                    "samples": {"floor": BATCH},
                    "gradient_checkpointing": True,
                },
                "evaluate": {"every": 1},
            }
        )
        needed = preview(settings, resources=True).resources
        assert needed is not None
        peaks: dict[str, int] = {}
        with federation_of(place / "federation", settings, files, model) as started:

            def watch() -> None:
                while True:
                    for name, process in started.items():
                        peaks[name] = max(peaks.get(name, 0), private(process.pid))
                    sleep(0.05)

            threading.Thread(target=watch, daemon=True).start()
            wait_for_the_end(place / "federation", started, 3000)
        ledger = Ledger(place / "federation" / "run")
        [[work, steps]] = ledger.select("select work_seconds, step_seconds from rounds")
        [[down, up]] = ledger.select("select max(sent), max(received) from traffic")
        ledger.close()
    for name, peak in peaks.items():
        print(f"{name}: at most {peak / 1e9:.2f} GB of private memory", flush=True)
    print(f"check: about {needed.line}")
    print(f"the round: {work:.1f} s, steps {steps / len(files):.1f} s; {down / 1e6:.2f} MB down, {up / 1e6:.2f} MB up")
    libraries = 0.5e9  # Python, torch and transformers, measured with a tiny model
    most = max(peaks[name] for name in files)
    what = "peak memory of a silo on a base of a billion parameters, against the estimate and 0.5 GB for libraries"
    figures.add("billion_memory", what, most / (needed.total + libraries), "ratio", "<=", 1.3)
    figures.end()


if __name__ == "__main__":
    main()
