"""The list of members: signed by the federation's authority, numbered, and never rolled back.

``members.json`` has a serial number and a date. A node keeps a copy of the newest list that it has accepted
(``members.newest.json``), in its kit and in its own files. It refuses a list with a lower serial number, so that a
revocation cannot be undone by replaying an old file, before or after a restart; the newest list stays in use. Two
different lists with one serial number are refused as well: they mean that two copies of the authority sign lists. The
second one is kept as evidence (``members.conflict.json``). As the copies are signed too, a changed copy is not used.
"""

import json
import logging
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from pydantic import ValidationError

from hansa.core.errors import UserError, parse_json
from hansa.core.settings import Section

log = logging.getLogger("hansa.members")

MEMBERS = "members.json"
NEWEST = "members.newest.json"  # the newest list that this node has accepted
CONFLICT = "members.conflict.json"  # another list with the serial number of the accepted one
PURPOSE = b"hansa members 2\n"
MAX_LIST_BYTES = 4 << 20


class Member(Section):
    """A member of the federation, as members.json lists it."""

    key: str  # Ed25519 public key, in hexadecimal
    kind: str  # coordinator, region, silo
    parent: str | None
    generations: tuple[int, ...]  # of certificates that are valid; none: the member is revoked


@dataclass(frozen=True)
class MemberList:
    """A list of members that the authority has signed; ``text`` is its file, ``digest`` that of the signed content."""

    federation: str
    serial: int
    date: str
    members: Mapping[str, Member]
    text: str
    digest: str


class ListRefused(ValueError):
    """A list of members is validly signed, and must not be used."""


def fingerprint(key: str) -> str:
    """The fingerprint of a public key (in hexadecimal), for people who compare it: eight groups of four digits."""
    digits = sha256(bytes.fromhex(key)).hexdigest()[:32]
    return " ".join(digits[i : i + 4] for i in range(0, 32, 4))


def sign_members(federation: str, serial: int, members: Mapping[str, Member], key: Ed25519PrivateKey) -> str:
    """Return the text of members.json, dated now and signed with the authority's key."""
    body = {
        "federation": federation,
        "serial": serial,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "members": {name: member.model_dump(mode="json") for name, member in members.items()},
    }
    return json.dumps({**body, "signature": key.sign(_canonical(body)).hex()}, ensure_ascii=False, indent=1)


def parse_members(text: str | bytes, ca: bytes) -> MemberList:
    """Return the list in the text of a members.json.

    Raises `ValueError` if it is damaged, or not signed by the authority whose certificate is ``ca``.
    """
    if len(text) > MAX_LIST_BYTES:
        raise ValueError(f"it is longer than {MAX_LIST_BYTES} bytes")
    raw = parse_json(text)
    try:
        body = {name: raw[name] for name in ("federation", "serial", "date", "members")}
        signature = bytes.fromhex(raw["signature"])
        key = x509.load_pem_x509_certificate(ca).public_key()
        assert isinstance(key, Ed25519PublicKey)
        key.verify(signature, _canonical(body))
        listed = {name: Member.model_validate(member) for name, member in body["members"].items()}
        if type(body["serial"]) is not int or not isinstance(body["federation"], str):
            raise TypeError
    except (KeyError, TypeError, AttributeError, AssertionError, ValidationError):
        raise ValueError("it is not a list of members") from None
    except InvalidSignature:
        raise ValueError("it is not signed by the federation's authority") from None
    found = text if isinstance(text, str) else bytes(text).decode()
    digest = sha256(_canonical(body)).hexdigest()
    return MemberList(body["federation"], body["serial"], str(body["date"]), listed, found, digest)


def _canonical(body: Mapping[str, object]) -> bytes:
    return PURPOSE + json.dumps(body, sort_keys=True).encode()


def check_successor(newer: MemberList, known: MemberList) -> None:
    """Raise `ListRefused` if a list must not replace the one that is in use."""
    if newer.federation != known.federation:
        raise ListRefused(f"it is the list of federation '{newer.federation}', and this node is in another one")
    if newer.serial < known.serial:
        raise ListRefused(
            f"it has serial number {newer.serial} ({newer.date}), and this node has accepted number {known.serial} "
            f"({known.date}): an old list was put back"
        )
    if newer.serial == known.serial and newer.digest != known.digest:
        raise ListRefused(
            f"it has serial number {newer.serial} as the list in use, and another content: two copies of the "
            "authority sign lists; ask the authority"
        )


class MemberStore:
    """The member list of a node, from the files in ``kit`` and the copies in ``memories``.

    ``memories``: folders in which the newest list is remembered; those that cannot be written are only read.
    """

    def __init__(self, kit: Path, memories: Sequence[Path] = ()) -> None:
        self.kit = kit
        self._memories = [kit, *memories]
        self._newest: MemberList | None = None
        self._stamp: tuple[tuple[int, int], ...] | None = None
        self._warned = ""
        self._lock = threading.RLock()  # of a server, several threads identify members

    def remember_in(self, folder: Path) -> None:
        """Keep the newest list in one more folder, and use what is remembered there.

        Raises `UserError` if neither this folder nor the kit can be written.
        """
        folder.mkdir(parents=True, exist_ok=True)
        with self._lock:
            if folder not in self._memories:
                self._memories.append(folder)
                self._stamp = None
            if not self._remember(self.current()):
                raise UserError(
                    f"the newest list of members can be stored neither in {folder} nor in {self.kit}; make one of them "
                    "writable"
                )

    def current(self) -> MemberList:
        """The newest list; files are read again when they change. A file that must not be used is reported once.

        Raises `UserError` if there is no list that can be used.
        """
        with self._lock:
            if self._stamps() != self._stamp or self._newest is None:
                self._read()
                self._stamp = self._stamps()
            if self._newest is None:
                raise UserError(f"{self.kit / MEMBERS} cannot be used ({self._warned}); ask for a new one")
            return self._newest

    def offer(self, text: str | bytes) -> bool:
        """Use a list from another source if it is newer; return whether it is. Raises `ValueError` if it is refused."""
        if (text if isinstance(text, str) else bytes(text).decode(errors="replace")) == self.current().text:
            return False  # it was verified before: a parent's note repeats the list every few seconds
        found = parse_members(text, self._ca())
        with self._lock:
            known = self.current()
            self._check(found, known)
            if found.serial == known.serial:
                return False
            self._newest = found
            self._remember(found)
            return True

    def _read(self) -> None:
        """Take the newest of all files; the list in use is never replaced by an older one."""
        for folder in self._memories:
            try:
                self._take(folder / NEWEST)
            except (OSError, ValueError):
                continue  # there is none, or it is damaged: the others count
        try:
            self._take(self.kit / MEMBERS)
            self._warned = ""
        except (OSError, ValueError) as error:
            self._report(self.kit / MEMBERS, _summary(error))
        if self._newest is not None:
            self._remember(self._newest)

    def _take(self, file: Path) -> None:
        found = parse_members(file.read_bytes(), self._ca())
        if self._newest is not None:
            self._check(found, self._newest)
        self._newest = found

    def _check(self, found: MemberList, known: MemberList) -> None:
        try:
            check_successor(found, known)
        except ListRefused:
            if found.serial == known.serial:
                for folder in self._memories:
                    _try_to_write(folder / CONFLICT, found.text)
            raise

    def _remember(self, newest: MemberList) -> bool:
        """Store a copy of the newest list wherever that is possible; return whether it is anywhere."""
        files = [folder / NEWEST for folder in self._memories]
        stored = [_holds(file, newest.text) or _try_to_write(file, newest.text) for file in files]
        return any(stored)

    def _report(self, file: Path, reason: str) -> None:
        if self._newest is not None and self._warned != reason:
            log.warning("%s cannot be used (%s): the newest list of members stays in use", file, reason)
        self._warned = reason

    def _ca(self) -> bytes:
        return (self.kit / "ca.pem").read_bytes()

    def _stamps(self) -> tuple[tuple[int, int], ...]:
        files = [self.kit / MEMBERS, *(folder / NEWEST for folder in self._memories)]
        return tuple(_stamps(files))


def _stamps(files: Iterable[Path]) -> Iterable[tuple[int, int]]:
    for file in files:
        try:
            found = file.stat()
            yield found.st_mtime_ns, found.st_ino
        except OSError:
            yield 0, 0


def _holds(file: Path, text: str) -> bool:
    try:
        return file.read_text(encoding="utf-8") == text
    except (OSError, ValueError):
        return False


def _try_to_write(file: Path, text: str) -> bool:
    """Replace a file atomically, if its folder can be written."""
    draft = file.with_name(f".{file.name}.{os.getpid()}.draft")
    try:
        with draft.open("w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        draft.replace(file)
    except OSError:
        return False
    return True


def _summary(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
