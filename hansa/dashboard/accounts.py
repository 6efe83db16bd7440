"""Local accounts of the pages: a file with names, Argon2 hashes, roles and the runs that an account may see.

Roles are ordered; each may do what the ones before it may:

    reader      sees runs
    submitter   also downloads models and submits federation files
    approver    also approves or refuses what was submitted; at a silo: approves runs, pauses the agent

``runs`` are patterns of run names (``clinics*``). A run that no pattern of an account matches does not exist for it.
"""

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from enum import IntEnum
from fcntl import LOCK_EX, flock
from fnmatch import fnmatchcase
from functools import cache
from hmac import compare_digest
from pathlib import Path
from typing import Any

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from hansa.core.errors import UserError
from hansa.files import write_file

NAME = re.compile(r"[\w.@+-]{1,64}")
MIN_PASSWORD, MAX_PASSWORD = 12, 1024  # characters
HASHER = PasswordHasher()


@cache
def _no_account() -> str:
    """The hash of a password that no account has: an unknown name takes as long as a wrong password."""
    return HASHER.hash(os.urandom(32))


class Role(IntEnum):
    """What an account may do; a higher role may do all that a lower one may."""

    reader = 1
    submitter = 2
    approver = 3


@dataclass(frozen=True)
class Account:
    """A person who may log in."""

    name: str
    role: Role
    runs: tuple[str, ...] = ("*",)
    hash: str = ""  # of the password; empty: the person logs in elsewhere

    def may_see(self, run: str) -> bool:
        """Whether a pattern of the account matches the name of a run."""
        return any(fnmatchcase(run, pattern) for pattern in self.runs)


class Accounts:
    """The accounts in a file that only its owner can read. Changes to the file take effect at once."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._read: tuple[tuple[int, int], dict[str, Account]] | None = None

    def all(self) -> dict[str, Account]:
        """The accounts by name; raises `UserError` if the file is damaged."""
        try:
            found = self.file.stat()
        except FileNotFoundError:
            return {}
        state = found.st_mtime_ns, found.st_ino
        if self._read is None or self._read[0] != state:
            self._read = state, self._load()
        return self._read[1]

    def _load(self) -> dict[str, Account]:
        try:
            raw = json.loads(self.file.read_text(encoding="utf-8"))
            return {name: _account(name, values) for name, values in raw["accounts"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(
                f"{self.file} is not a file of accounts ({type(error).__name__}); restore it from a backup, or delete "
                "it and add the accounts again with 'hansa dashboard user add'"
            ) from None

    def add(self, name: str, password: str, role: Role, runs: tuple[str, ...] = ("*",)) -> None:
        """Add an account, or replace the one with this name; raises `UserError` for an unusable name or password."""
        if not NAME.fullmatch(name):
            raise UserError(f"the name {name!r} cannot be used: take up to 64 letters, digits and any of . @ + - _")
        if not MIN_PASSWORD <= len(password) <= MAX_PASSWORD:
            raise UserError(
                f"the password has {len(password)} characters, and it needs {MIN_PASSWORD} to {MAX_PASSWORD}"
            )
        with self._changing() as accounts:
            accounts[name] = Account(name, role, runs, HASHER.hash(password))

    def remove(self, name: str) -> None:
        """Remove an account; its sessions end with the next request. Raises `UserError` if there is none."""
        with self._changing() as accounts:
            if accounts.pop(name, None) is None:
                raise UserError(f"{self.file} has no account '{name}'; 'hansa dashboard user list' shows them")

    @contextmanager
    def _changing(self) -> Iterator[dict[str, Account]]:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.with_name(f".{self.file.name}.lock").open("w") as lock:
            flock(lock, LOCK_EX)
            accounts = dict(self.all())
            yield accounts
            values = {one.name: asdict(one) | {"role": one.role.name} for one in accounts.values()}
            write_file(self.file, json.dumps({"accounts": values}, indent=1).encode(), mode=0o600)

    def check(self, name: str, password: str) -> Account | None:
        """The account with this name and password; None if there is none. It takes about a tenth of a second."""
        account = self.all().get(name)
        try:
            HASHER.verify(account.hash if account is not None and account.hash else _no_account(), password)
        except (VerificationError, InvalidHashError):
            return None
        return account

    def find(self, name: str) -> Account | None:
        """The account with this name as it is now; None if there is none."""
        return self.all().get(name)


def _account(name: str, values: dict[str, Any]) -> Account:
    found = Account(name, Role[values["role"]], tuple(map(str, values["runs"])), str(values["hash"]))
    return replace(found, runs=found.runs or ("*",))


class TokenAccount:
    """One account whose password is a token in a file that only its owner can read; made if it is missing."""

    def __init__(self, file: Path, name: str) -> None:
        self.file, self._name = file, name
        if not file.is_file():
            write_file(file, os.urandom(18).hex().encode() + b"\n", mode=0o600)

    def check(self, name: str, password: str) -> Account | None:
        """The account, if the password is the token in the file; the name does not matter."""
        token = self.file.read_text(encoding="utf-8").strip()
        right = bool(token) and compare_digest(token.encode(), password.strip().encode())
        return self.find(self._name) if right else None

    def find(self, name: str) -> Account | None:
        """The one account."""
        return Account(self._name, Role.approver) if name == self._name else None


class NoAccounts:
    """For a site without local accounts, where people log in with a provider alone."""

    def check(self, name: str, password: str) -> Account | None:
        """None: no password is right."""
        return None

    def find(self, name: str) -> Account | None:
        """None: there is no account."""
        return None


def open_accounts(file: Path) -> Accounts:
    """The accounts in a file; raises `UserError` if there is none, since then no person could log in."""
    held = Accounts(file)
    if not held.all():
        raise UserError(
            f"{file} has no account, so that no person could log in; add one with 'hansa dashboard user add NAME "
            f"--accounts {file}'"
        )
    return held
