"""Letters: whole, from whom they say, to us, of our version, our run and our time; or refused."""

import json
from dataclasses import asdict, replace
from time import time

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from hansa.deploy.agent import _Known
from hansa.deploy.bundle import pack, unpack
from hansa.links.depot import Refusal
from hansa.links.seal import LARGEST, PROTOCOL, Envelope, Unsealed, seal, unseal

KEY = Ed25519PrivateKey.generate()
OTHER = Ed25519PrivateKey.generate()
GOOD = Envelope("coordinator", "north", "r1", 5.0, "q" * 32, 7, "Train", 3, ("0" * 32, 9), {"model": ("1" * 32, 400)})


def opened(letter: bytes) -> Envelope:
    return unseal(letter, "coordinator", "north", KEY.public_key())


def raw(**changes: object) -> bytes:
    body = json.dumps({**asdict(GOOD), **changes}).encode()
    return KEY.sign(body) + body


def test_a_good_letter_is_read_as_it_was_written():
    assert opened(seal(GOOD, KEY)) == GOOD


@pytest.mark.parametrize(
    ("letter", "reason"),
    [
        (seal(GOOD, OTHER), "signature"),
        (seal(GOOD, KEY)[:-1], "signature"),
        (seal(GOOD, KEY)[1:], "signature"),
        (b"", "0 bytes"),
        (b"x" * (LARGEST + 1), "bytes"),
        (seal(replace(GOOD, receiver="south"), KEY), "from 'coordinator' to 'south'"),
        (seal(replace(GOOD, sender="north"), KEY), "from 'north'"),
        (seal(replace(GOOD, protocol=PROTOCOL + 1), KEY), "protocol version 2"),
        (seal(replace(GOOD, at=time() + 3600), KEY), "in the future: set the clocks"),
        (raw(sequence="7"), "'sequence' is a str"),
        (raw(sequence=True), "'sequence' is a bool"),
        (raw(more=1), "it has fields"),
        (raw(text=["../../etc/passwd", 3]), "no digest"),
        (raw(text=["0" * 32, -3]), "no digest"),
        (raw(vectors={"model": 3}), "no digest"),
        (KEY.sign(b"[]") + b"[]", "not an envelope"),
        (KEY.sign(b"{") + b"{", "not JSON"),
    ],
    ids=range(17),  # signatures differ between processes, and names of tests must not
)
def test_other_letters_are_refused(letter, reason):
    with pytest.raises(Unsealed, match=reason):
        opened(letter)


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_a_letter_with_one_changed_byte_is_refused(place, change):
    letter = bytearray(seal(GOOD, KEY))
    letter[place % len(letter)] ^= change
    with pytest.raises(Unsealed):
        opened(bytes(letter))


@given(st.lists(st.tuples(st.sampled_from([("r1", 5.0), ("r2", 6.0), ("r0", 4.0)]), st.integers(0, 5)), max_size=30))
def test_what_is_believed_never_goes_back(tmp_path_factory, letters):
    """Replayed, re-ordered and doubled letters, over restarts of the reader: runs and sequences only ever rise."""
    file = tmp_path_factory.mktemp("known") / "state.json"
    believed = []
    for (run, begun), sequence in letters:
        try:
            _Known(file).check(replace(GOOD, run=run, begun=begun, sequence=sequence))
        except Unsealed:
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


@pytest.mark.parametrize("name", ["../x", "a/b", "/etc/x", "..", ".hidden", "a\x00b", "a\nb", ""])
def test_names_that_lead_elsewhere_are_refused(tmp_path, name):
    bundle = json.dumps([[name, 1]]).encode() + b"\nx"
    with pytest.raises(Refusal, match="file called"):
        unpack(memoryview(bundle), tmp_path / "there")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("bundle", [b"", b"[]", b"{}\n", b'[["a", 5]]\nxx', b'[["a", -1]]\n', b'[["a"]]\n', b"\xff\n"])
def test_bundles_that_are_none_are_refused(tmp_path, bundle):
    with pytest.raises(Refusal, match="not a bundle"):
        unpack(memoryview(bundle), tmp_path / "there")
