"""A silo's round of LoRA on a frozen causal model, against PEFT with transformers' Trainer: time, memory, bytes.

Both take the same steps of AdamW on the same padded batches in float32, with all cores. Each runs in a process of its
own, in turns; the median counts. Loading is not timed, and is part of the peak memory. The model has random weights
and the shape of SmolLM2-135M (30 layers of 576, 49,152 tokens); HANSA_BENCH_MODEL=FOLDER measures any other causal
model.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
import transformers
from _federations import federation, tokenizer_of, words
from _figures import Figures

from hansa.client.host import SiloHost
from hansa.client.runtime import Runtime
from hansa.config.federation import Federation
from hansa.core import wire
from hansa.core.messages import Train, Update
from hansa.core.seeds import stream
from hansa.deploy.bundle import pack
from hansa.links.local import LocalLink
from hansa.models.base import own_tensors
from hansa.models.settings import Model
from hansa.runs.callbacks import RunEvents
from hansa.runs.directory import RunDirectory
from hansa.runs.ledger import Ledger
from hansa.runs.start import begin

STEPS, BATCH, LENGTH, RUNS, LR = 2, 8, 64, 5, 1e-4
LORA = {"rank": 8, "alpha": 16}
SAMPLE = 256  # bytes of each tensor of the base that are looked for in what is sent


def model_of(folder: Path, smoke: bool) -> Path:
    """A causal model with random weights."""
    if (named := os.environ.get("HANSA_BENCH_MODEL")) and not smoke:
        return Path(named).resolve()
    layers, width, heads, entries = (2, 64, 2, 600) if smoke else (30, 576, 9, 49152)
    tokenizer = tokenizer_of(words(500), 500)
    config = transformers.LlamaConfig(
        vocab_size=entries,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 3 or 1,
        intermediate_size=8 * width // 3,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def settings_of(root: Path, model: Path) -> Federation:
    """One silo with texts of different lengths."""
    file, vocabulary, rng = root / "silo.jsonl", words(500), stream(1, "texts")
    lengths = rng.integers(LENGTH // 4, LENGTH, STEPS * BATCH)
    texts = (" ".join(vocabulary[i] for i in rng.integers(0, len(vocabulary), n)) for n in lengths)
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    training = {"optimizer": "adamw", "lr": LR, "batch": BATCH, "samples": {"floor": STEPS * BATCH, "replace": False}}
    base = {"path": str(model), "adapt": "lora", "lora": LORA, "dtype": "float32"}
    settings = federation({"s0": str(file)}, model, LENGTH, task="causal-lm", train=training)
    return settings.model_copy(update={"model": Model.model_validate(base)})


def batches_of(host: SiloHost) -> list[dict[str, torch.Tensor]]:
    """The padded batches of a round, with labels as transformers has them."""
    found = []
    for parts in host.silo("s0").resident.batches(1, host.runtime.federation.train):
        for batch in parts:
            inputs = dict(batch.inputs)
            labels = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)
            found.append(inputs | {"labels": labels})
    return found


def ours(host: SiloHost) -> dict[str, float]:
    """A silo's answer to one request."""
    runtime = host.runtime
    host.silo("s0").resident.examples("train")
    request = Train(1, runtime.start)  # loads the model
    began = perf_counter()
    reply = host.silo("s0").answer(request)
    seconds = perf_counter() - began
    assert isinstance(reply, Update), reply
    bundle = bytes(pack(runtime.folder / "start", runtime.folder / "start.bundle"))
    model = runtime.learner.model
    own = own_tensors(model)
    base = [p.detach().numpy().tobytes() for name, p in model.named_parameters() if name not in own]
    seen = sum(data[:SAMPLE] in bundle for data in base if len(data) > SAMPLE and len(set(data[:SAMPLE])) > 8)
    sent = wire.size(request) + wire.size(reply)
    return {"seconds": seconds, "loss": reply.loss, "sent": sent, "base tensors sent": seen}


def theirs(host: SiloHost, place: Path) -> dict[str, float]:
    """PEFT and transformers' Trainer, as their documentation shows them."""
    from peft import LoraConfig, get_peft_model

    batches = batches_of(host)
    path = str(host.runtime.federation.model.path)
    base = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    config = LoraConfig(
        r=LORA["rank"], lora_alpha=LORA["alpha"], target_modules="all-linear", task_type="CAUSAL_LM", lora_dropout=0.0
    )
    model = get_peft_model(base, config)
    arguments = transformers.TrainingArguments(
        output_dir=str(place / "trainer"),
        per_device_train_batch_size=1,  # a row of the data set is a whole batch, padded as ours
        max_steps=len(batches),
        learning_rate=LR,
        lr_scheduler_type="constant",
        weight_decay=0.0,
        max_grad_norm=0.0,
        optim="adamw_torch",
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_pin_memory=False,
    )
    trainer: Any = transformers.Trainer(
        model=model, args=arguments, train_dataset=batches, data_collator=lambda rows: rows[0]
    )
    began = perf_counter()
    done = trainer.train()
    seconds = perf_counter() - began
    adapter = 4 * sum(p.numel() for p in model.parameters() if p.requires_grad)
    return {"seconds": seconds, "loss": done.training_loss, "adapter": adapter}


def arm(name: str, place: Path) -> None:
    """One measurement, in a process of its own."""
    import yaml

    from hansa.config.file import parse

    settings = parse(yaml.safe_load((place / "run" / "federation.yaml").read_text()))
    host = SiloHost(Runtime(settings, place / "run"))
    found = ours(host) if name == "ours" else theirs(host, place)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps(found | {"peak": peak}))


def main() -> None:
    if len(sys.argv) > 1 and sys.argv[1] == "--arm":
        arm(sys.argv[2], Path(sys.argv[3]))
        return
    figures = Figures.from_arguments()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        settings = settings_of(place, model_of(place / "model", figures.smoke))
        directory = RunDirectory.create(settings, place / "run", False)
        ledger = Ledger(directory.path)
        link = LocalLink(SiloHost(Runtime(settings, directory.path)).answer)
        begin(settings, directory, link, ledger, RunEvents())
        ledger.close()
        found: dict[str, list[dict[str, float]]] = {"ours": [], "theirs": []}
        for _ in range(1 if figures.smoke else int(os.environ.get("HANSA_BENCH_RUNS", RUNS))):
            for name, runs in found.items():
                command = [sys.executable, __file__, "--arm", name, str(place)]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
                runs.append(json.loads(done.stdout.splitlines()[-1]))
                print(name, runs[-1], flush=True)
    middle = {name: {key: median(run[key] for run in runs) for key in runs[0]} for name, runs in found.items()}
    mine, other = middle["ours"], middle["theirs"]
    assert abs(mine["loss"] - other["loss"]) < 0.02 * other["loss"], "both take the same steps"
    what = "a silo's round of LoRA on a causal model of 135 million parameters against PEFT with transformers' Trainer"
    figures.add("lora_round_time", what, mine["seconds"] / other["seconds"], "ratio", "<=", 0.95)
    figures.add("lora_peak_memory", "its peak memory", mine["peak"] / other["peak"], "ratio", "<=", 1.1)
    sent = mine["sent"] / (2 * other["adapter"])
    figures.add("lora_bytes", "its bytes, both ways, against those of the adapter", sent, "ratio", "<=", 1.02)
    base = mine["base tensors sent"]
    figures.add("lora_base_tensors_sent", "tensors of the base in the start that silos receive", base, "", "<=", 0)
    figures.end()


if __name__ == "__main__":
    main()
