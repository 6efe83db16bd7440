"""A coordinator with code of its own sends a model to a real agent, over mutual TLS, that makes it read a private file.

The control unpacks as an agent without the checks would: the weights of the private file become the silo's model.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from hansa.config.file import parse
from hansa.config.shared import for_members
from hansa.core.messages import DataCard, DescribeData, Failure
from hansa.deploy import bundle, policy_enforcer, request_reader
from hansa.deploy.agent import Agent
from hansa.deploy.join import SiloService
from hansa.deploy.kit import COORDINATOR, Kit
from hansa.deploy.policy_enforcer import PolicyEnforcer
from hansa.deploy.server_session import server_session
from hansa.models import build
from hansa.models.tokenizer import byte_tokenizer
from hansa.privacy.policy.audit_log import entries
from tests.conftest import WORDS, write_words
from tests.deploy.conftest import make_kits
from tests.deploy.test_agent import WAIT_SECONDS, alive
from tests.redteam.bundles import MASKED, bundle_of, write_model


def without_checks(view: memoryview, folder: Path) -> None:
    """What `unpack` did before: write every file that is listed."""
    folder.mkdir(parents=True)
    for name, content in bundle._files(view).items():
        (folder / name).write_bytes(content)


@pytest.fixture
def silo(tmp_path: Path) -> Iterator[Any]:
    """The link of a coordinator to the agent of `north`, which runs; and the agent's home."""
    files = {name: write_words(tmp_path / f"{name}.jsonl", words, 30) for name, words in WORDS.items()}
    settings = parse({"name": "small", "model": "mini", "silos": {n: str(f) for n, f in files.items()}, "rounds": 1})
    kits = make_kits(settings, tmp_path / "kits")
    kit, home = Kit(kits / "north"), tmp_path / "north"
    service = SiloService(kit, settings.silos["north"].sources, (), PolicyEnforcer.load(kit, None, home))
    agent = Agent(kit, home, service, lambda text: None)
    with server_session(Kit(kits / COORDINATOR), tmp_path / "server", None, lambda text: None) as link, alive(agent):
        link.share_settings(for_members(settings))
        yield link, home


@pytest.mark.parametrize("defended", [True, False])
def test_an_index_with_a_path_does_not_load_a_private_file(
    silo: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, defended: bool
) -> None:
    link, home = silo
    start = write_model(tmp_path / "start", build.preset("mini", MASKED, byte_tokenizer(), 64))
    values = load_file(start / "model.safetensors")
    private = home / "private.safetensors"  # ../../../ from home/runs/RUN/start
    save_file({name: torch.full_like(value, 7.0) for name, value in values.items()}, private, {"format": "pt"})
    (start / "model.safetensors").unlink()
    index = {"metadata": {"total_size": 1}, "weight_map": dict.fromkeys(values, "../../../private.safetensors")}
    (start / "model.safetensors.index.json").write_text(json.dumps(index))
    if not defended:
        monkeypatch.setattr(request_reader, "unpack", without_checks)
        monkeypatch.setattr(policy_enforcer, "verify_start", lambda *_: "not verified")  # which would refuse it too
    link.share_start(bundle_of(start))
    [answer] = link.ask({"north": DescribeData()}, monotonic() + WAIT_SECONDS)
    if defended:
        assert isinstance(answer.reply, Failure)
        assert "the initial model is refused" in answer.reply.reason
        assert str(tmp_path) not in answer.reply.reason
        assert any("the initial model is refused" in e.get("reason", "") for e in entries(home / "audit.jsonl"))
        assert not list(home.glob("runs/*/start"))
    else:
        assert isinstance(answer.reply, DataCard)
        [there] = home.glob("runs/*/start")
        assert float(build.load(str(there), MASKED).get_input_embeddings().weight.detach().min()) == 7.0
