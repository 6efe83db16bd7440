"""Case 14: words of a silo's text are in no message, log, report, status or error."""

import json
import logging
import threading
from pathlib import Path
from time import time
from typing import Any

import pytest

from hansa.client.runtime import Runtime
from hansa.client.silo import Silo
from hansa.core.settings import Named
from hansa.dashboard.accounts import TokenAccount
from hansa.dashboard.app import create
from hansa.dashboard.silo_app import create as create_silo
from hansa.dashboard.silo_view import SiloView
from hansa.deploy import status
from hansa.deploy.agent import Agent
from hansa.deploy.coordinator import serve
from hansa.deploy.join import SiloService
from hansa.deploy.kit import COORDINATOR, Kit
from hansa.deploy.network.blob_client import BlobClient
from hansa.deploy.network.blob_server import BlobServer
from hansa.deploy.network.connection import Connection
from hansa.deploy.policy_enforcer import PolicyEnforcer
from hansa.report import html
from hansa.runs.ledger import Ledger
from tests.cli.test_cli import ok
from tests.conftest import Build
from tests.dashboard.conftest import all_pages
from tests.deploy.conftest import make_kits

ONCE = ["quartzibelle", "zanzowit", "borkelmund"]  # in a text, in a line that cannot be read, in an error
OFTEN = "schnupfenfieber"  # sent as word pieces of the vocabulary: the positive control of this test


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Any:
    """All bytes that are sent over TLS: envelopes, and the parts of requests and replies."""
    sent: list[bytes] = []
    send, upload, offer = Connection._send, BlobClient.upload, BlobServer.offer

    def sending(self: Any, data: Any) -> Any:
        sent.append(bytes(data))
        return send(self, data)

    def uploading(self: Any, view: Any, *rest: Any) -> Any:
        sent.append(bytes(view))
        return upload(self, view, *rest)

    def offering(self: Any, view: Any, *rest: Any) -> Any:
        sent.append(bytes(view))
        return offer(self, view, *rest)

    monkeypatch.setattr(Connection, "_send", sending)
    monkeypatch.setattr(BlobClient, "upload", uploading)
    monkeypatch.setattr(BlobServer, "offer", offering)
    return sent


def test_canaries_stay_in_their_silo(
    federation: Build,
    tmp_path: Path,
    log: Any,
    wire: Any,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.DEBUG)
    fail_training("north", monkeypatch)
    settings = federation(rounds=1, data={"max_length": 16, "max_bad_rows": 0.5})
    file = tmp_path / "data" / "north.jsonl"
    texts = [f"{ONCE[0]} fever", *[f"cough {OFTEN}"] * 8]
    file.write_text(file.read_text() + "".join(json.dumps({"text": text}) + "\n" for text in texts))
    with file.open("a") as stream:
        stream.write(f'{{"text": broken {ONCE[1]}}}\n')
    kits = make_kits(settings, tmp_path / "kits")
    agents = []
    for name, node in settings.silos.items():
        kit = Kit(kits / name)
        service = SiloService(kit, node.sources, (), PolicyEnforcer.load(kit, None, tmp_path / "silos" / name))
        agents.append(Agent(kit, tmp_path / "silos" / name, service, log.say))
    threads = [threading.Thread(target=agent.run, daemon=True) for agent in agents]
    for thread in threads:
        thread.start()
    try:
        outcome = serve(settings, Kit(kits / COORDINATOR), tmp_path / "run", None, [log])
    finally:
        for agent in agents:
            agent.stop()
        for thread in threads:
            thread.join(300)
    report = html.write([("small", outcome.folder)], outcome.folder / "report.html")
    shown = ok("audit", "show", str(tmp_path / "silos" / "north")) + ok("status", str(outcome.folder))
    ledger = Ledger(outcome.folder)
    [lost] = [
        text for node, text in ledger.select("select node, text from events where kind='lost'") if node == "north"
    ]
    ledger.close()
    assert "ValueError (its message stays at the silo)" in lost, "the coordinator gets the type, not the message"

    files = [f for folder in ("run", "silos", "kits") for f in (tmp_path / folder).rglob("*") if f.is_file()]
    assert report in files
    assert len(files) > 40
    places = {str(f): f.read_bytes() for f in files}
    places |= {f"wire {i}": data for i, data in enumerate(wire)}
    places["logs"] = "\n".join([*log.lines, caplog.text, *map(repr, caplog.records), shown]).encode()
    places["status"] = json.dumps(
        status.as_dict(status.read_status(outcome.folder, time()), status.read_refusals(outcome.folder), False)
    ).encode()
    places |= all_pages(create(tmp_path, TokenAccount(tmp_path / "token", "admin"), secure=False), tmp_path / "token")
    view = SiloView(Kit(kits / "north"), tmp_path / "silos" / "north", None, (), None)
    own = create_silo(view, TokenAccount(tmp_path / "token", "admin"), True, False, ())
    places |= {f"silo {path}": page for path, page in all_pages(own, tmp_path / "token").items()}
    assert b"its message stays at the silo" in places["/runs/run"], "the pages show why a silo was lost"
    assert b"The silo sent" in places["silo /log"]
    for word in ONCE:
        assert [place for place, data in places.items() if word.encode() in data] == []
    seen = [place for place, data in places.items() if OFTEN[:4].encode() in data]
    assert any(place.startswith("wire") for place in seen), "the control: released words are found"


NAMED = ["quartzibelle", "zanzowit", "borkelmund", "knarzelfritz"]  # label, field, file, text of a damaged row


@pytest.mark.parametrize(("allowed", "defended"), [(0.5, True), (0.0, True), (0.5, False)])
def test_names_of_files_labels_and_fields_stay_in_their_silo(
    federation: Build,
    tmp_path: Path,
    log: Any,
    wire: Any,
    caplog: pytest.LogCaptureFixture,
    allowed: float,
    defended: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With ``allowed`` 0 the silo cannot use its data, and its failure leaves in place of its data card.

    The control is not ``defended``: the silo describes its data as in a simulation, and the file's name leaves.
    """
    caplog.set_level(logging.WARNING)
    if not defended:
        monkeypatch.setattr(Runtime, "deployed", property(lambda self: False, lambda self, value: None), raising=False)
    settings = federation(
        rounds=1, task="classify", data={"max_length": 16, "max_bad_rows": allowed}, participation={"quorum": 0.5}
    )
    settings = settings.model_copy(
        update={"task": Named.model_validate({"name": "classify", "labels": ["high", "low"]})}
    )
    file = tmp_path / "data" / f"{NAMED[2]}.jsonl"
    rows = [json.dumps({"text": "fever", "label": NAMED[0]}), json.dumps({NAMED[1]: "fever", "label": "low"})]
    good = (tmp_path / "data" / "north.jsonl").read_text()
    file.write_text(good + "\n".join([*rows, f'{{"text": {NAMED[3]}}}']) + "\n")
    kits = make_kits(settings, tmp_path / "kits")
    agents = []
    for name, node in settings.silos.items():
        kit, source = Kit(kits / name), node.sources[0]
        own = source.model_copy(update={"train": str(file)}) if name == "north" else source
        service = SiloService(kit, (own,), (), PolicyEnforcer.load(kit, None, tmp_path / "silos" / name))
        agents.append(Agent(kit, tmp_path / "silos" / name, service, lambda text: None, warn=logging.warning))
    threads = [threading.Thread(target=agent.run, daemon=True) for agent in agents]
    for thread in threads:
        thread.start()
    try:
        outcome = serve(settings, Kit(kits / COORDINATOR), tmp_path / "run", None, [log])
    finally:
        for agent in agents:
            agent.stop()
        for thread in threads:
            thread.join(300)
    ledger = Ledger(outcome.folder)
    told = [text for node, text in ledger.select("select node, text from events") if node == "north"]
    ledger.close()
    if not defended:
        assert any(NAMED[2] in text for text in told)
        assert any(NAMED[2].encode() in data for data in wire)
        return
    if allowed:
        assert sum("rows have a label that is not listed" in text for text in told) == 1
        assert sum("rows have no text" in text for text in told) >= 1
    else:
        assert set(told) == {"its data or settings cannot be used (DataError); see the log of the node"}
    places = {str(f): f.read_bytes() for f in (tmp_path / "run").rglob("*") if f.is_file()}
    places |= {f"wire {i}": data for i, data in enumerate(wire)} | {"log": "\n".join(log.lines).encode()}
    assert len(places) > 40
    for word in NAMED:
        assert [place for place, data in places.items() if word.encode() in data] == []
    assert NAMED[2] in caplog.text, "the control: the silo's own log names the file"


def fail_training(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the training of a silo fail with an error whose message quotes a text."""
    honest = Silo.train

    def train(self: Silo, *arguments: Any, **named: Any) -> Any:
        if self.name == name:
            raise ValueError(f"cannot digest the text '{ONCE[2]}'")
        return honest(self, *arguments, **named)

    monkeypatch.setattr(Silo, "train", train)
