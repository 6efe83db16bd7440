"""The one port's second certificate: for browsers and for proxies that inspect TLS, which do not know Ed25519."""

import socket
import ssl
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import sleep
from typing import Any

import pytest
from cryptography import x509
from hypothesis import given
from hypothesis import strategies as st

from hansa.core.errors import UserError
from hansa.deploy.kit import COORDINATOR, Kit
from hansa.deploy.network.client_hello import RECORD_HEAD, knows_ed25519, record_length
from hansa.deploy.network.front import Front
from hansa.deploy.network.sealed import SessionTable
from hansa.deploy.network.tls import public_tls
from hansa.deploy.public_certificate import PublicCertificate, self_signed
from tests.conftest import Build
from tests.deploy.conftest import make_kits


def first_message() -> bytes:
    """The first record of this machine's own TLS client."""
    context = ssl.create_default_context()
    out = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), out, server_hostname="hansa.example")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return out.read()


def without_ed25519(hello: bytes) -> bytes:
    """The same from a client that does not know Ed25519: another number stands in its place."""
    assert hello.count(b"\x08\x07") == 1
    return hello.replace(b"\x08\x07", b"\x08\x0b")


def test_a_client_that_knows_ed25519_is_told_from_one_that_does_not() -> None:
    hello = first_message()
    assert record_length(hello) == len(hello)
    assert knows_ed25519(hello)
    assert not knows_ed25519(without_ed25519(hello))


def test_nothing_that_a_stranger_sends_is_an_error() -> None:
    hello = without_ed25519(first_message())
    for end in range(len(hello)):
        assert knows_ed25519(hello[:end]) is (b"\x08\x0b" not in hello[:end] or len(hello) > end), (
            "no guess before the end"
        )
        assert record_length(hello[:end]) in (RECORD_HEAD, len(hello))
    assert record_length(b"GET / HTTP/1.1\r\n") == 0


@given(st.binary(max_size=400))
def test_any_bytes_are_read(data: bytes) -> None:
    assert knows_ed25519(data) in (True, False)
    assert knows_ed25519(b"\x16\x03\x01" + len(data).to_bytes(2, "big") + b"\x01" + data) in (True, False)
    assert 0 <= record_length(data) <= RECORD_HEAD + (1 << 14)


def test_a_self_signed_certificate_is_kept_and_made_anew_before_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = self_signed(tmp_path, ["hansa.example", "10.0.0.7"])
    assert files.key.stat().st_mode & 0o077 == 0
    first = files.certificate.read_bytes()
    made = x509.load_pem_x509_certificate(first)
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["hansa.example"]
    assert [str(one) for one in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.7"]
    assert made.not_valid_after_utc - datetime.now(UTC) < timedelta(days=398), "browsers refuse longer ones"
    self_signed(tmp_path, ["hansa.example"])
    assert files.certificate.read_bytes() == first
    monkeypatch.setattr("hansa.deploy.public_certificate.RENEWED_BEFORE", 400)
    self_signed(tmp_path, ["hansa.example"])
    assert files.certificate.read_bytes() != first


def test_files_that_cannot_be_used_are_one_sentence(tmp_path: Path) -> None:
    files = self_signed(tmp_path, ["hansa.example"])
    assert PublicCertificate.parse(None, None) is None
    assert PublicCertificate.parse(*files) == files
    with pytest.raises(UserError, match="belong together"):
        PublicCertificate.parse(files.certificate, None)
    with pytest.raises(UserError, match=r"cannot be used .*; give PEM files"):
        PublicCertificate.parse(files.key, files.certificate)


@pytest.fixture
def port(federation: Build, tmp_path: Path) -> Any:
    kits = make_kits(federation(), tmp_path / "kits")
    kit = Kit(kits / COORDINATOR)
    shown = self_signed(tmp_path / "server", ["localhost"])
    sessions = SessionTable(kit, kit.info.federation)
    front = Front(
        ("127.0.0.1", kit.endpoint.port), kit.server_tls(), kit.identify, sessions, lambda *_: None, {},
        public=public_tls(*shown),
    )  # fmt: skip
    yield kits, shown, ("127.0.0.1", kit.endpoint.port)
    front.close()


def test_members_see_the_certificate_of_the_kit(port: Any) -> None:
    kits, _, address = port
    with socket.create_connection(address) as plain:
        # it verifies the server by the authority of the federation
        secured = Kit(kits / "north").client_tls().wrap_socket(plain, server_hostname="localhost")
        secured.close()


@pytest.mark.parametrize("pieces", [1, 2, 7])
def test_others_see_the_public_one_also_if_their_message_arrives_in_pieces(port: Any, pieces: int) -> None:
    """A browser's first message is longer than a packet: it must not be answered with the wrong certificate."""
    _, shown, address = port
    context = ssl.create_default_context(cafile=str(shown.certificate))
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    hello = without_ed25519(outgoing.read())
    with socket.create_connection(address, timeout=60) as plain:
        size = -(-len(hello) // pieces)
        for at in range(0, len(hello), size):
            plain.sendall(hello[at : at + size])
            sleep(0.05)
        answer = plain.recv(65536)
    # The client would find that its own message was changed; what it was shown is in the clear with TLS 1.2 alone. The
    # server's first record says that it goes on: with the certificate of the kit it would end with an alert.
    assert answer[0] == 22, "a handshake, not an alert"


def test_a_client_that_stops_in_the_middle_is_dropped(port: Any) -> None:
    _, _, address = port
    with socket.create_connection(address, timeout=60) as plain:
        plain.sendall(first_message()[:100])
        plain.shutdown(socket.SHUT_WR)
        with suppress(ConnectionResetError):
            assert plain.recv(1) == b""


def test_without_the_second_certificate_such_a_client_gets_an_alert(federation: Build, tmp_path: Path) -> None:
    """Negative control."""
    kit = Kit(make_kits(federation(), tmp_path / "kits") / COORDINATOR)
    sessions = SessionTable(kit, kit.info.federation)
    address = ("127.0.0.1", kit.endpoint.port)
    front = Front(address, kit.server_tls(), kit.identify, sessions, lambda *_: None, {})
    try:
        with socket.create_connection(address, timeout=60) as plain:
            plain.sendall(without_ed25519(first_message()))
            assert plain.recv(65536)[0] == 21, "an alert"
    finally:
        front.close()
