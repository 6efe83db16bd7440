"""Envelopes: forged, malformed, replayed or future ones are rejected; so are unsafe bundles and settings."""

import json
import logging
from dataclasses import asdict, replace
from pathlib import Path
from time import time
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from hansa.config.federation import Federation
from hansa.config.nodes import Node
from hansa.core.errors import printable
from hansa.data.source import Source
from hansa.deploy.agent import Agent
from hansa.deploy.bundle import unpack
from hansa.deploy.join import own_settings
from hansa.deploy.kit import COORDINATOR, Kit
from hansa.deploy.log_files import Lines, Objects
from hansa.deploy.network.blob_protocol import RequestRefused
from hansa.deploy.network.envelope import MAX_BYTES, PROTOCOL, Envelope, EnvelopeError, open_envelope, sign_envelope
from hansa.deploy.replay_guard import ReplayGuard
from hansa.models.settings import Model
from tests.conftest import Build
from tests.deploy.conftest import NoService, make_kits

KEY = Ed25519PrivateKey.generate()
OTHER = Ed25519PrivateKey.generate()
RUN, REQUEST = "1" * 16, "a" * 32
GOOD = Envelope("coordinator", "north", RUN, 5.0, REQUEST, 7, "Train", 3, ("0" * 32, 9), {"model": ("1" * 32, 400)})


def opened(data: bytes) -> Envelope:
    return open_envelope(data, "coordinator", "north", KEY.public_key())


def raw(**changes: object) -> bytes:
    body = json.dumps({**asdict(GOOD), **changes}).encode()
    return KEY.sign(body) + body


def test_an_envelope_survives_signing_and_opening() -> None:
    assert opened(sign_envelope(GOOD, KEY)) == GOOD


def test_versions_one_apart_understand_each_other() -> None:
    """A newer version may add fields; where it uses none of them, its envelopes are those of this version."""
    newer = replace(GOOD, protocol=PROTOCOL + 1)
    assert opened(sign_envelope(newer, KEY)) == newer
    with pytest.raises(EnvelopeError, match="does not have the fields"):
        opened(raw(protocol=PROTOCOL + 1, more=1))
    plain = replace(GOOD, settings=None, start=None, deadline=None, vectors={})
    body = json.loads(sign_envelope(plain, KEY)[64:])
    assert not {"settings", "start", "deadline", "vectors"} & set(body), "what is at its default is left out"
    assert opened(sign_envelope(plain, KEY)) == plain


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (sign_envelope(GOOD, OTHER), "signature"),
        (sign_envelope(GOOD, KEY)[:-1], "signature"),
        (sign_envelope(GOOD, KEY)[1:], "signature"),
        (b"", "0 bytes"),
        (b"x" * (MAX_BYTES + 1), "bytes"),
        (sign_envelope(replace(GOOD, receiver="south"), KEY), "from 'coordinator' to 'south'"),
        (sign_envelope(replace(GOOD, sender="north"), KEY), "from 'north'"),
        (sign_envelope(replace(GOOD, protocol=PROTOCOL + 2), KEY), f"protocol version {PROTOCOL + 2}"),
        (sign_envelope(replace(GOOD, sent_at=time() + 3600), KEY), "in the future: synchronise the clocks"),
        (raw(sequence="7"), "'sequence' is a str"),
        (raw(sequence=True), "'sequence' is a bool"),
        (raw(more=1), "does not have the fields"),
        (raw(text=["../../etc/passwd", 3]), "not a digest and a size"),
        (raw(text=["0" * 32, -3]), "not a digest and a size"),
        (raw(vectors={"model": 3}), "not a digest and a size"),
        (raw(text=["0" * 32, True]), "not a digest and a size"),
        (KEY.sign(b"[]") + b"[]", "not a JSON object"),
        (KEY.sign(b"{") + b"{", "not JSON"),
        (raw(run_started=time() + 3600), "in the future: synchronise the clocks"),
        (raw(run_started=float("nan")), "'run_started' is not a valid time"),
        (raw(sent_at=float("inf")), "'sent_at' is not a valid time"),
        (raw(deadline=10**400), "'deadline' is not a valid time"),
        (raw(sent_at=-1), "'sent_at' is not a valid time"),
        (raw(sequence=1 << 70), "'sequence' is out of range"),
        (raw(round=-1), "'round' is out of range"),
        (raw(kind="Train\x1b[2J"), "'kind' is not a valid name"),
        (raw(vectors={"": ["0" * 32, 4]}), "the name of a vector"),
        (raw(vectors={"../model": ["0" * 32, 4]}), "the name of a vector"),
    ],
    ids=range(28),  # signatures differ between processes, and names of tests must not
)
def test_invalid_envelopes_are_rejected(data: Any, reason: Any) -> None:
    with pytest.raises(EnvelopeError, match=reason):
        opened(data)


@pytest.mark.parametrize("field", ["run", "request"])
@pytest.mark.parametrize(
    "name", ["", "..", "../../x", "/etc", "a/b", "a" * 15, "A" * 16, "a" * 31 + "\n", "\x00" * 16, "é" * 32]
)
def test_a_run_or_a_request_that_is_a_path_is_rejected(field: Any, name: Any) -> None:
    """They become names of folders that a silo writes and deletes."""
    with pytest.raises(EnvelopeError, match=f"'{field}' is not a valid name"):
        opened(raw(**{field: name}))


def newest(agent: Agent) -> Envelope | None:
    """The newest request; read by a call, because every envelope changes it."""
    return agent.requests.newest()


def test_an_agent_changes_no_files_for_an_envelope_with_paths(federation: Build, tmp_path: Path) -> None:
    """The coordinator, with its own key, names a folder of the silo outside of the run."""
    kits = make_kits(federation(), tmp_path / "kits")
    precious = tmp_path / "homes" / "precious"
    precious.mkdir(parents=True)
    (precious / "thesis.txt").write_text("years of work")
    lines: list[str] = []
    agent = Agent(Kit(kits / "north"), tmp_path / "homes" / "north", NoService(), lines.append)
    envelope = replace(GOOD, run="../../precious", request="..", run_started=time())
    agent._receive(sign_envelope(envelope, Kit(kits / COORDINATOR).key))
    assert newest(agent) is None
    assert lines == ["an envelope was rejected: the field 'run' is not a valid name"]
    agent._receive(sign_envelope(replace(envelope, run=RUN, request=REQUEST), Kit(kits / COORDINATOR).key))
    assert newest(agent) is not None, "the same envelope with valid names is accepted"
    assert (precious / "thesis.txt").read_text() == "years of work"


@pytest.mark.parametrize("formatter", [Lines(), Objects()])
def test_control_characters_are_removed_from_logs(formatter: Any) -> None:
    odd = "a\x1b[2J\x07b\r\nc\u202ed\x9be"
    line = formatter.format(logging.makeLogRecord({"msg": odd, "levelname": "INFO", "name": "hansa"}))
    shown = json.loads(line)["text"] if isinstance(formatter, Objects) else line
    assert shown.endswith("a\ufffd[2J\ufffdb c\ufffdd\ufffde")
    assert len(printable("x" * 5000)) < 310


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_an_envelope_with_one_changed_byte_is_rejected(place: Any, change: Any) -> None:
    data = bytearray(sign_envelope(GOOD, KEY))
    data[place % len(data)] ^= change
    with pytest.raises(EnvelopeError):
        opened(bytes(data))


@given(
    st.lists(st.tuples(st.sampled_from([(RUN, 5.0), ("2" * 16, 6.0), ("0" * 16, 4.0)]), st.integers(0, 5)), max_size=30)
)
def test_accepted_positions_only_rise(tmp_path_factory: pytest.TempPathFactory, positions: Any) -> None:
    """Replayed, re-ordered and duplicate envelopes, with a restart before each."""
    file = tmp_path_factory.mktemp("known") / "state.json"
    accepted = []
    for (run, started), sequence in positions:
        try:
            ReplayGuard(file).check(replace(GOOD, run=run, run_started=started, sequence=sequence))
        except EnvelopeError:
            continue
        accepted.append((started, sequence))
    for run in {run for run, _ in accepted}:
        numbers = [sequence for other, sequence in accepted if other == run]
        assert numbers == sorted(numbers)
    first_of_each = list(dict.fromkeys(run for run, _ in accepted))
    assert first_of_each == sorted(first_of_each), "a run that was not seen before began after all that were"


ODD_NAMES = ["../x.json", "a/b.json", "/etc/x.txt", "..", ".hidden.json", "a\x00b.json", "a\nb.json", "", "é.json"]
CODE = ["modeling.py", "setup.cfg", "pytorch_model.bin", "weights.pkl", "x.so", "run.sh", "config.json.py", "noend"]


@pytest.mark.parametrize("name", ODD_NAMES + CODE)
def test_bundles_with_paths_or_code_are_refused(tmp_path: Path, name: Any) -> None:
    bundle = json.dumps([[name, 1]]).encode() + b"\nx"
    with pytest.raises(RequestRefused, match="file named"):
        unpack(memoryview(bundle), tmp_path / "there")
    assert list(tmp_path.iterdir()) == []


def sent(federation: Federation) -> bytes:
    """The settings as a lying coordinator sends them: with paths and programs."""
    return json.dumps({"settings": federation.model_dump(mode="json"), "at_default": []}).encode()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"deidentify": "os:system"}, "only the silo may name programs"),
        ({"silo": "south"}, "the settings have no node 'north'"),
        ({"mixture": True}, "only that member may name them"),
        ({"model": Model(path="/home/others/model")}, "only that member may name them"),
    ],
)
def test_settings_that_name_files_or_programs_of_a_silo_are_refused(
    federation: Build, change: Any, reason: Any
) -> None:
    received = federation()
    if "deidentify" in change:
        received = received.model_copy(update={"data": received.data.model_copy(update=change)})
    elif "silo" in change:
        received = received.model_copy(update={"silos": {change["silo"]: received.silos["south"]}})
    elif "mixture" in change:
        node = Node(mixture=True, silos={"secrets": Node(sources=(Source(train="/etc/passwd"),))})
        received = received.model_copy(update={"silos": {"north": node}})
    else:
        received = received.model_copy(
            update={"silos": {**received.silos, "north": received.silos["north"].model_copy(update=change)}}
        )
    with pytest.raises(RequestRefused, match=reason):
        own_settings(sent(received), "north", (), ())


def test_a_silo_uses_its_own_paths_and_plugins(federation: Build) -> None:
    received = federation()
    own = (Source(train="/here/notes.jsonl"),)
    taken = own_settings(sent(received), "north", own, ("mine.py",))
    assert taken.silos["north"].sources == own
    assert {s.train for n, node in taken.silos.items() if n != "north" for s in node.sources} == {""}
    assert taken.plugins == ("mine.py",)


@pytest.mark.parametrize("bundle", [b"", b"[]", b"{}\n", b'[["a", 5]]\nxx', b'[["a", -1]]\n', b'[["a"]]\n', b"\xff\n"])
def test_malformed_bundles_are_refused(tmp_path: Path, bundle: Any) -> None:
    with pytest.raises(RequestRefused, match="not a bundle"):
        unpack(memoryview(bundle), tmp_path / "there")
