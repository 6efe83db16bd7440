"""Sessions of the pages, in the memory of the process, and the limit on attempts to log in.

The cookie holds a random number and nothing about the account; a session ends after twelve hours, after two hours
without a request, by logging out, and with the process.
"""

import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from secrets import token_urlsafe
from time import monotonic

from hansa.dashboard.accounts import Account

MAX_SECONDS, IDLE_SECONDS = 12 * 3600.0, 2 * 3600.0
MAX_SESSIONS = 10_000
ATTEMPTS = {"account": (5, 60.0), "address": (20, 300.0)}  # failed attempts within so many seconds
MAX_KEYS = 10_000  # names and addresses whose attempts are remembered


@dataclass
class Session:
    """One logged-in person. ``current``: looks the account up again, so that a removed one is refused at once."""

    account: Account
    current: Callable[[], Account | None]
    began: float
    used: float
    csrf: str = field(default_factory=lambda: token_urlsafe(24))
    streams: int = 0  # open pages of this login that receive events now


class Sessions:
    """The sessions by the digest of their number. Several threads may use it."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._held: OrderedDict[str, Session] = OrderedDict()

    def begin(self, account: Account, current: Callable[[], Account | None]) -> str:
        """Begin a session; returns its number for the cookie."""
        number, now = token_urlsafe(32), self._clock()
        with self._lock:
            while len(self._held) >= MAX_SESSIONS:
                self._held.popitem(last=False)
            self._held[_key(number)] = Session(account, current, now, now)
        return number

    def find(self, number: str) -> Session | None:
        """The session with a number, with its account as it is now; None if it has ended."""
        now = self._clock()
        with self._lock:
            session = self._held.get(_key(number))
        if session is None:
            return None
        account = session.current()
        if account is None or now - session.began > MAX_SECONDS or now - session.used > IDLE_SECONDS:
            self.end(number)
            return None
        session.account, session.used = account, now
        return session

    def end(self, number: str) -> None:
        """End a session."""
        with self._lock:
            self._held.pop(_key(number), None)


def _key(number: str) -> str:
    return sha256(number.encode()).hexdigest()


class LoginLimit:
    """Counts failed attempts to log in, by account and address together and by address."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._failed: OrderedDict[tuple[str, str], deque[float]] = OrderedDict()

    def wait(self, name: str, address: str) -> float:
        """Seconds until the next attempt is allowed; 0: now."""
        now = self._clock()
        with self._lock:
            return max(self._left(key, now) for key in _keys(name, address))

    def _left(self, key: tuple[str, str], now: float) -> float:
        attempts, seconds = ATTEMPTS[key[0]]
        times = self._failed.get(key, deque())
        while times and now - times[0] > seconds:
            times.popleft()
        return seconds - (now - times[0]) if len(times) >= attempts else 0.0

    def failed(self, name: str, address: str) -> None:
        """Count a failed attempt."""
        with self._lock:
            for key in _keys(name, address):
                self._failed.setdefault(key, deque(maxlen=100)).append(self._clock())
                self._failed.move_to_end(key)
            while len(self._failed) > MAX_KEYS:
                self._failed.popitem(last=False)


def _keys(name: str, address: str) -> tuple[tuple[str, str], ...]:
    """An account is limited together with the address: a stranger cannot keep its owner out from elsewhere."""
    return ("account", f"{name[:64]} {address}"), ("address", address)
