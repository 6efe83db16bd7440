"""Letters: whole, from whom they say, to us, of our version, our run and our time, leading nowhere; or refused."""

import json
import logging
from dataclasses import asdict, replace
from time import time

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from hansa.cli.logs import Lines, Objects
from hansa.config.nodes import Node
from hansa.core.errors import printable
from hansa.data.source import Source
from hansa.deploy.agent import Agent, ReplayGuard
from hansa.deploy.bundle import pack, unpack
from hansa.deploy.join import own_settings
from hansa.deploy.kit import COORDINATOR, Kit
from hansa.deploy.network.blob_server import RequestRefused
from hansa.deploy.network.envelope import MAX_BYTES, PROTOCOL, Envelope, EnvelopeError, sign_envelope, open_envelope
from hansa.models.settings import Model
from tests.deploy.conftest import make_kits

KEY = Ed25519PrivateKey.generate()
OTHER = Ed25519PrivateKey.generate()
RUN, QUESTION = "1" * 16, "a" * 32
GOOD = Envelope("coordinator", "north", RUN, 5.0, QUESTION, 7, "Train", 3, ("0" * 32, 9), {"model": ("1" * 32, 400)})


def opened(letter: bytes) -> Envelope:
    return open_envelope(letter, "coordinator", "north", KEY.public_key())


def raw(**changes: object) -> bytes:
    body = json.dumps({**asdict(GOOD), **changes}).encode()
    return KEY.sign(body) + body


def test_a_good_letter_is_read_as_it_was_written():
    assert opened(sign_envelope(GOOD, KEY)) == GOOD


@pytest.mark.parametrize(
    ("letter", "reason"),
    [
        (sign_envelope(GOOD, OTHER), "signature"),
        (sign_envelope(GOOD, KEY)[:-1], "signature"),
        (sign_envelope(GOOD, KEY)[1:], "signature"),
        (b"", "0 bytes"),
        (b"x" * (MAX_BYTES + 1), "bytes"),
        (sign_envelope(replace(GOOD, receiver="south"), KEY), "from 'coordinator' to 'south'"),
        (sign_envelope(replace(GOOD, sender="north"), KEY), "from 'north'"),
        (sign_envelope(replace(GOOD, protocol=PROTOCOL + 1), KEY), f"protocol version {PROTOCOL + 1}"),
        (sign_envelope(replace(GOOD, at=time() + 3600), KEY), "in the future: set the clocks"),
        (raw(sequence="7"), "'sequence' is a str"),
        (raw(sequence=True), "'sequence' is a bool"),
        (raw(more=1), "it has fields"),
        (raw(text=["../../etc/passwd", 3]), "no digest"),
        (raw(text=["0" * 32, -3]), "no digest"),
        (raw(vectors={"model": 3}), "no digest"),
        (raw(text=["0" * 32, True]), "no digest"),
        (KEY.sign(b"[]") + b"[]", "not an envelope"),
        (KEY.sign(b"{") + b"{", "not JSON"),
        (raw(begun=time() + 3600), "in the future: set the clocks"),
        (raw(begun=float("nan")), "'begun' is no time"),
        (raw(at=float("inf")), "'at' is no time"),
        (raw(until=10**400), "'until' is no time"),
        (raw(at=-1), "'at' is no time"),
        (raw(sequence=1 << 70), "'sequence' is beyond"),
        (raw(round=-1), "'round' is beyond"),
        (raw(kind="Train\x1b[2J"), "'kind' is not a name"),
        (raw(vectors={"": ["0" * 32, 4]}), "a vector whose name"),
        (raw(vectors={"../model": ["0" * 32, 4]}), "a vector whose name"),
    ],
    ids=range(28),  # signatures differ between processes, and names of tests must not
)
def test_other_letters_are_refused(letter, reason):
    with pytest.raises(EnvelopeError, match=reason):
        opened(letter)


@pytest.mark.parametrize("field", ["run", "request"])
@pytest.mark.parametrize(
    "name", ["", "..", "../../x", "/etc", "a/b", "a" * 15, "A" * 16, "a" * 31 + "\n", "\x00" * 16, "é" * 32]
)
def test_a_run_or_a_request_that_could_lead_elsewhere_is_refused(field, name):
    """They become names of folders that a silo writes and removes."""
    with pytest.raises(EnvelopeError, match=f"'{field}' is not a name"):
        opened(raw(**{field: name}))


def test_an_agent_touches_nothing_for_a_letter_that_leads_elsewhere(federation, tmp_path):
    """The coordinator itself, with its own key, names a folder of the silo's that has nothing to do with the run."""
    kits = make_kits(federation(), tmp_path / "kits")
    precious = tmp_path / "homes" / "precious"
    precious.mkdir(parents=True)
    (precious / "thesis.txt").write_text("years of work")
    said: list[str] = []
    agent = Agent(Kit(kits / "north"), tmp_path / "homes" / "north", None, said.append)
    letter = replace(GOOD, run="../../precious", request="..", begun=time())
    agent._hear(sign_envelope(letter, Kit(kits / COORDINATOR).key))
    assert agent._letter is None
    assert said == ["a letter was refused: its field 'run' is not a name that is given here"]
    agent._hear(sign_envelope(replace(letter, run=RUN, request=QUESTION), Kit(kits / COORDINATOR).key))
    assert agent._letter is not None, "the same letter with names of the usual kind is taken up"
    assert (precious / "thesis.txt").read_text() == "years of work"


@pytest.mark.parametrize("formatter", [Lines(), Objects()])
def test_what_others_write_cannot_play_tricks_with_a_log(formatter):
    odd = "a\x1b[2J\x07b\r\nc\u202ed\x9be"
    line = formatter.format(logging.makeLogRecord({"msg": odd, "levelname": "INFO", "name": "hansa"}))
    shown = json.loads(line)["text"] if isinstance(formatter, Objects) else line
    assert shown.endswith("a\ufffd[2J\ufffdb c\ufffdd\ufffde")
    assert len(printable("x" * 5000)) < 310


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_a_letter_with_one_changed_byte_is_refused(place, change):
    letter = bytearray(sign_envelope(GOOD, KEY))
    letter[place % len(letter)] ^= change
    with pytest.raises(EnvelopeError):
        opened(bytes(letter))


@given(
    st.lists(st.tuples(st.sampled_from([(RUN, 5.0), ("2" * 16, 6.0), ("0" * 16, 4.0)]), st.integers(0, 5)), max_size=30)
)
def test_what_is_believed_never_goes_back(tmp_path_factory, letters):
    """Replayed, re-ordered and doubled letters, over restarts of the reader: runs and sequences only ever rise."""
    file = tmp_path_factory.mktemp("known") / "state.json"
    believed = []
    for (run, begun), sequence in letters:
        try:
            ReplayGuard(file).check(replace(GOOD, run=run, begun=begun, sequence=sequence))
        except EnvelopeError:
            continue
        believed.append((begun, sequence))
    assert believed == sorted(believed)


def test_a_common_start_is_unpacked_as_it_was_packed(tmp_path):
    (tmp_path / "start").mkdir()
    (tmp_path / "start" / "config.json").write_text("{}")
    (tmp_path / "start" / "model.safetensors").write_bytes(bytes(range(256)))
    bundle = pack(tmp_path / "start", tmp_path / "bundle")
    unpack(bundle, tmp_path / "there")
    assert {f.name: f.read_bytes() for f in (tmp_path / "there").iterdir()} == {
        "config.json": b"{}",
        "model.safetensors": bytes(range(256)),
    }


ODD_NAMES = ["../x.json", "a/b.json", "/etc/x.txt", "..", ".hidden.json", "a\x00b.json", "a\nb.json", "", "é.json"]
CODE = ["modeling.py", "setup.cfg", "pytorch_model.bin", "weights.pkl", "x.so", "run.sh", "config.json.py", "noend"]


@pytest.mark.parametrize("name", ODD_NAMES + CODE)
def test_files_that_lead_elsewhere_or_may_hold_code_are_refused(tmp_path, name):
    bundle = json.dumps([[name, 1]]).encode() + b"\nx"
    with pytest.raises(RequestRefused, match="file called"):
        unpack(memoryview(bundle), tmp_path / "there")
    assert list(tmp_path.iterdir()) == []


def test_settings_that_name_code_are_refused_and_code_is_not_packed(tmp_path):
    text = b'{"auto_map": {"AutoModel": "modeling.Evil"}}'
    with pytest.raises(RequestRefused, match="names code to be loaded"):
        unpack(memoryview(json.dumps([["config.json", len(text)]]).encode() + b"\n" + text), tmp_path / "there")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "start").mkdir()
    for name in ("config.json", "modeling.py", "pytorch_model.bin"):
        (tmp_path / "start" / name).write_text("{}")
    unpack(pack(tmp_path / "start", tmp_path / "bundle"), tmp_path / "there")
    assert [file.name for file in (tmp_path / "there").iterdir()] == ["config.json"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"deidentify": "os:system"}, "a program of the coordinator's"),
        ({"silo": "south"}, "the settings know no 'north'"),
        ({"mixture": True}, "theirs to name"),
        ({"model": Model(path="/home/others/model")}, "theirs to name"),
    ],
)
def test_settings_that_name_what_is_the_silos_are_refused(federation, change, reason):
    told = federation()
    if "deidentify" in change:
        told = told.model_copy(update={"data": told.data.model_copy(update=change)})
    elif "silo" in change:
        told = told.model_copy(update={"silos": {change["silo"]: told.silos["south"]}})
    elif "mixture" in change:
        node = Node(mixture=True, silos={"secrets": Node(sources=(Source(train="/etc/passwd"),))})
        told = told.model_copy(update={"silos": {"north": node}})
    else:
        told = told.model_copy(update={"silos": {**told.silos, "north": told.silos["north"].model_copy(update=change)}})
    with pytest.raises(RequestRefused, match=reason):
        own_settings(told.model_dump_json().encode(), "north", (), ())


def test_of_the_settings_a_silo_takes_no_paths_and_no_code(federation):
    told = federation()
    own = (Source(train="/here/notes.jsonl"),)
    taken = own_settings(told.model_dump_json().encode(), "north", own, ("mine.py",))
    assert taken.silos["north"].sources == own
    assert {s.train for n, node in taken.silos.items() if n != "north" for s in node.sources} == {""}
    assert taken.plugins == ("mine.py",)


@pytest.mark.parametrize("bundle", [b"", b"[]", b"{}\n", b'[["a", 5]]\nxx', b'[["a", -1]]\n', b'[["a"]]\n', b"\xff\n"])
def test_bundles_that_are_none_are_refused(tmp_path, bundle):
    with pytest.raises(RequestRefused, match="not a bundle"):
        unpack(memoryview(bundle), tmp_path / "there")
