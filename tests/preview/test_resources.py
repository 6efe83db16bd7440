"""The estimate of memory: close to what a round really takes, and each setting moves it the right way."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from hansa.config.federation import Federation
from hansa.models import build
from hansa.models.adapt import adapt
from hansa.preview.preview import preview
from hansa.preview.resources import Resources, predict_resources
from hansa.runs.run import run
from hansa.tasks.base import TASKS
from tests.conftest import Build
from tests.models.test_base import adapted, decoder

SIZES = {"small": {"hidden_size": 192, "num_hidden_layers": 4}, "large": {"hidden_size": 320, "num_hidden_layers": 8}}
MEASURE = """
import json, sys, threading, time
from pathlib import Path
import yaml
from hansa.client.host import SiloHost
from hansa.client.runtime import Runtime
from hansa.config.file import parse
from hansa.core.messages import Train, Update
import hansa.models.preloaded, torch, transformers, peft
torch.set_num_threads(1)
transformers.LlamaForCausalLM

def private():
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * sum(int(l.split()[1]) for l in lines if l.startswith(("RssAnon", "RssShmem")))

folder = Path(sys.argv[1])
host = SiloHost(Runtime(parse(yaml.safe_load((folder / "federation.yaml").read_text())), folder))
silo, peak = host.silo("north"), [0]
silo.resident.examples("train")
torch.nn.functional.linear(torch.ones(64, 64), torch.ones(64, 64))  # the libraries' own threads and buffers
before = private()
def watch():
    while True:
        peak[0] = max(peak[0], private())
        time.sleep(0.002)
threading.Thread(target=watch, daemon=True).start()
start = silo.resident.runtime.start
assert isinstance(silo.answer(Train(1, start, 0)), Update)
print(json.dumps(peak[0] - before))
"""


def predicted(federation: Federation) -> Resources:
    task = TASKS.build(federation.task)
    model: Any = build.outline(federation.model, task.auto, (), federation.data.max_length)
    with torch.device("meta"):
        adapt(model, federation.model, 0)
    return predict_resources(model, federation, task, 32)


def settings_of(federation: Build, model: Any, **train: Any) -> Federation:
    """Texts of about 45 tokens, cut at 32: the estimate is for samples of full length, and these have it."""
    steps = {"optimizer": "adamw", "batch": 48, "samples": {"floor": 96}} | train
    return federation(
        task="causal-lm", rounds=1, model=model, tokenizer={}, sizes={"north": 60}, train=steps, data={"max_length": 32}
    )


@pytest.mark.slow_fault
@pytest.mark.parametrize("size", SIZES)
def test_the_estimate_is_close_to_the_measured_peak(size: str, federation: Build, tmp_path: Path) -> None:
    shape: dict[str, Any] = {"num_attention_heads": 4, "intermediate_size": 800} | SIZES[size]
    base = decoder(tmp_path / "base", vocabulary=6000, **shape)
    settings = settings_of(federation, {"path": str(base)})
    run(settings.model_copy(update={"rounds": 0}), tmp_path / "run", workers=0)
    command = [sys.executable, "-c", MEASURE, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    measured, found = json.loads(done.stdout.splitlines()[-1]), predicted(settings)
    assert found.total == pytest.approx(measured, rel=0.3), f"{found} against {measured / 1e6:.0f} MB"


def test_settings_move_the_estimate_the_right_way(federation: Build, tmp_path: Path) -> None:
    base = decoder(tmp_path / "base", torch.bfloat16, num_hidden_layers=4, hidden_size=64)
    full = predicted(settings_of(federation, {"path": str(base)}))
    parameters = full.trained // 16
    assert full.base == 0
    lora = predicted(settings_of(federation, adapted(base)))
    assert lora.base == 2 * parameters, "a frozen base keeps its dtype"
    assert lora.trained < 0.2 * full.trained
    quantised = predicted(settings_of(federation, adapted(base) | {"quantize": "4bit"}))
    assert quantised.base < 0.75 * lora.base
    halves = predicted(settings_of(federation, {"path": str(base)}, processes=2, shard=True))
    assert halves.trained == full.trained // 2
    assert halves.messages == full.messages
    assert halves.activations < 0.6 * full.activations, "each has half of the batch"
    parted = predicted(settings_of(federation, adapted(base), processes=2, shard=True))
    assert (parted.base, parted.trained) == (lora.base // 2, lora.trained)
    saving = predicted(settings_of(federation, {"path": str(base)}, gradient_checkpointing=True))
    assert saving.activations < 0.5 * full.activations
    small = predicted(settings_of(federation, {"path": str(base)}, micro_batch=12))
    assert small.activations == pytest.approx(full.activations / 4, rel=0.1)
    sgd = predicted(settings_of(federation, {"path": str(base)}, optimizer="sgd"))
    assert sgd.trained == full.trained // 2


def test_check_shows_it_for_large_models_and_on_request(federation: Build, tmp_path: Path) -> None:
    settings = settings_of(federation, {"path": str(decoder(tmp_path / "base"))})
    assert preview(settings).resources is None, "a small model fits everywhere"
    found = preview(settings, resources=True).resources
    assert found is not None
    assert "GB for a silo" in found.line
    assert found.seconds > 0
