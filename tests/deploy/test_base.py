"""Between organisations a frozen base does not travel: each silo has its own copy, checked by digest."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from hansa.cli.deploy import folder_of
from hansa.config.federation import Federation
from hansa.config.shared import shared_settings
from hansa.core.errors import UserError
from hansa.deploy.approval import NotApproved, approval_of
from hansa.deploy.bundle import pack, unpack
from hansa.deploy.join import with_own_base
from hansa.deploy.network.blob_protocol import InvalidRequest
from hansa.deploy.start_check import verify_start
from hansa.models.base import ADAPTER, BASE
from hansa.runs.run import run
from tests.conftest import Build
from tests.deploy.conftest import Log, over_the_network
from tests.models.test_base import TRAIN, adapted, decoder


@pytest.fixture
def settings(federation: Build, tmp_path: Path) -> Federation:
    base = decoder(tmp_path / "base", vocabulary=2048)
    return federation(task="causal-lm", rounds=2, model=adapted(base), tokenizer={}, train=TRAIN)


def test_a_network_run_gives_the_adapter_of_a_simulation_and_sends_no_byte_of_the_base(
    settings: Federation, tmp_path: Path, log: Log
) -> None:
    simulated = run(settings, tmp_path / "simulated", workers=0).folder
    folder = over_the_network(settings, tmp_path / "net", log).folder
    name = "model/adapter_model.safetensors"
    assert (folder / name).read_bytes() == (simulated / name).read_bytes()
    base = Path(str(settings.model.path)) / "model.safetensors"
    received = [file for file in (tmp_path / "net" / "silos").rglob("start/*") if file.is_file()]
    assert len({file.parent for file in received}) == 3
    assert not any(file.name.startswith("model") for file in received)
    [bundle] = (tmp_path / "net" / "run").rglob("start.bundle")
    adapter = (folder / "start" / ADAPTER).stat().st_size
    words = (folder / "start" / "tokenizer.json").stat().st_size
    assert bundle.stat().st_size < adapter + words + 8192 < base.stat().st_size / 2
    head = load_file(base)["lm_head.weight"].numpy().tobytes()
    assert head not in bundle.read_bytes()


def test_a_silo_needs_a_copy_and_the_right_one(settings: Federation, tmp_path: Path) -> None:
    folder = run(settings, tmp_path / "run", workers=0).folder
    received, copy = shared_settings(settings), tmp_path / "copy"
    assert received.model.path == "base", "the coordinator's folder is not told"
    shutil.copytree(str(settings.model.path), copy)
    own = with_own_base(received, folder, str(copy))
    assert own.model.path == str(copy)
    with pytest.raises(InvalidRequest) as none:
        with_own_base(received, folder, "")
    assert "--model FOLDER" in none.value.detail
    tensors = load_file(copy / "model.safetensors")
    tensors["lm_head.weight"][0, 0] += 1e-6
    save_file(tensors, copy / "model.safetensors", {"format": "pt"})
    with pytest.raises(InvalidRequest, match="is not the one of this run") as other:
        with_own_base(received, folder, str(copy))
    assert "has the digest" in other.value.detail
    assert str(copy) not in str(other.value), "what leaves does not name the silo's folder"
    with pytest.raises(UserError, match="is not a folder"):
        folder_of(tmp_path / "nowhere")


def test_the_start_is_built_again_from_the_silos_copy(settings: Federation, tmp_path: Path) -> None:
    start = run(settings, tmp_path / "run", workers=0).folder / "start"
    copy, received = tmp_path / "copy", shared_settings(settings)
    shutil.copytree(str(settings.model.path), copy)
    approval = approval_of(received, model=copy)
    assert "built again" in verify_start(start, received, approval)
    with pytest.raises(NotApproved, match="no copy"):
        verify_start(start, received, approval_of(received))
    tensors = load_file(start / ADAPTER)
    name = next(name for name in tensors if "lora_B" in name)
    save_file(tensors | {name: tensors[name] + 0.01}, start / ADAPTER)
    with pytest.raises(NotApproved, match="are not the approved ones"):
        verify_start(start, received, approval)
    (start / BASE).unlink()
    with pytest.raises(NotApproved, match="must come without the base's weights"):
        verify_start(start, received, approval)


def no_digest(start: Path) -> None:
    (start / BASE).write_text(json.dumps({"sha256": "x", "auto_map": "code.py"}))


def no_adapter(start: Path) -> None:
    (start / ADAPTER).unlink()


def both(start: Path) -> None:
    shutil.copy(start / ADAPTER, start / "model.safetensors")


@pytest.mark.parametrize(
    ("tamper", "reason"), [(no_digest, "is not the digest"), (no_adapter, "must have"), (both, "no other weights")]
)
def test_a_malformed_start_is_refused(settings: Federation, tmp_path: Path, tamper: Any, reason: str) -> None:
    start = run(settings, tmp_path / "run", workers=0).folder / "start"
    unpack(pack(start, tmp_path / "bundle"), tmp_path / "there")
    assert (tmp_path / "there" / ADAPTER).is_file()
    tamper(start)
    with pytest.raises(InvalidRequest, match=reason):
        unpack(pack(start, tmp_path / "other"), tmp_path / "nowhere")
