"""The one who answers: a silo's agent, or a region towards its parent.

The main thread listens to the letter box and says that we are there; a second thread does what the newest letter asks.
It connects only outwards, keeps the model loaded, waits for days, and whatever breaks is tried again for ever.
"""

import json
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from time import monotonic, time
from typing import Any, Protocol

import torch

from hansa.core import wire
from hansa.core.errors import UserError
from hansa.core.messages import Failure, Reply, Request
from hansa.deploy import quota as room
from hansa.deploy.bundle import unpack
from hansa.deploy.kit import Kit
from hansa.deploy.network.address import Proxy
from hansa.deploy.network.blob_client import BlobClient
from hansa.deploy.network.blob_server import Refusal, Unusable
from hansa.deploy.network.connection import Connection
from hansa.deploy.network.envelope import Envelope, EnvelopeError, Ref, seal, unseal
from hansa.deploy.network.retry import GaveUp, Retry
from hansa.deploy.network.session import Session, unsaid
from hansa.deploy.reply_store import TEXT, Packed, ReplyStore, loose
from hansa.links.local import attempt

LIFE_SECONDS = 5.0
LOOK_SECONDS = 10.0
AGAIN_SECONDS = 5.0
TRIES = 3
FINISH_SECONDS = 30.0  # for what an agent is sending when it is told to stop
LARGEST_TEXT = 256 << 20
LARGEST_SETTINGS = 16 << 20
REASONS = 200  # kept apart: whoever sends nonsense must not fill our memory with it

Say = Callable[[str], None]


class Trade(Protocol):
    """What a node does for a living: answers, from a folder of this run and the federation's settings."""

    def open(self, folder: Path, settings: bytes) -> Callable[[Request], Reply]: ...

    def refuse(self, message: str, round: int, reason: str) -> None:
        """Write down that a request could not be used."""


@dataclass(frozen=True)
class Opened:
    """A run this node takes part in."""

    run: str
    start: Ref | None
    folder: Path
    answer: Callable[[Request], Reply]


class Agent:
    def __init__(
        self, kit: Kit, home: Path, trade: Trade, say: Say, proxy: Proxy | None = None, warn: Say | None = None
    ) -> None:
        """``say`` hears what happens, ``warn`` what should not."""
        self._kit, self._home, self._trade, self._proxy = kit, home, trade, proxy
        self._say, self._warn = say, warn or say
        self._subjects = kit.above
        kit.key.public_key()  # if it is damaged, this is said before anything begins
        assert kit.card.parent is not None
        self._parent = kit.card.parent
        self._stop = threading.Event()
        self._stopped = 0.0  # when
        self._worker = threading.Thread(target=self._work_for_ever, name="hansa-work", daemon=True)
        self._news = threading.Condition()
        self._letter: Envelope | None = None  # the newest
        self._done = ("", -1)  # run and sequence of the letter that was dealt with last
        self.phase = "idle"  # fetching, working, sending: `hansa status` shows it
        self.due: float | None = None  # when nobody waits for the present answer any more, on the monotonic clock
        self._opened: Opened | None = None
        self._buffers: dict[str, torch.Tensor] = {}
        self._refusals: dict[str, int] = {}
        self._listening: Session | None = None
        home.mkdir(parents=True, exist_ok=True)
        self._known = _Known(home / "state.json", self._warn)

    def waits(self) -> str:
        """What keeps it from working, if anything."""
        there = self._listening is not None and self._listening.connected
        host, port = self._parent.letters
        return "" if there else f"for a connection to {host}:{port}"

    def stop(self) -> None:
        self._stopped = monotonic()
        self._stop.set()
        with self._news:
            self._news.notify_all()

    def _leaving(self) -> bool:
        """Told to stop, and not in the middle of sending an answer: that is finished first, if it can be soon."""
        if not self._stop.is_set():
            return False
        return self.phase != "sending" or monotonic() > self._stopped + FINISH_SECONDS

    @property
    def busy(self) -> bool:
        """Whether there is still work going on, after `run` has ended: it is done again when the agent is back."""
        return self._worker.is_alive()

    # ── listening ─────────────────────────────────────────────────────────────────────────────────────────────────

    def run(self) -> None:
        """Until `stop`."""
        self._worker.start()
        session = self._listening = self._session(
            [self._subjects.request(self._kit.name)], self._stop.is_set, self._say
        )
        seen, looked, lived = 0, 0.0, 0.0
        try:
            while not self._stop.is_set():
                now = monotonic()
                if session.connections != seen or now - looked >= LOOK_SECONDS:
                    self._look(session)
                    seen, looked = session.connections, now
                if now - lived >= LIFE_SECONDS:
                    session.do(self._live)
                    lived = now
                message = session.next(1.0)
                if message is not None:
                    self._hear(message.payload)
                    lived = 0.0  # whoever asks hears at once that somebody is there
        except GaveUp:
            pass
        finally:
            session.close()
            while self.busy and not self._leaving():
                self._worker.join(0.1)
            self._worker.join(1.0)

    def _session(self, listen: list[str], stop: Callable[[], bool], say: Say) -> Session:
        inbox = self._subjects.inbox(self._kit.name)
        return Session(self._parent.letters, self._kit.client_tls(), inbox, listen, say, stop, self._proxy)

    def _live(self, connection: Connection) -> None:
        state = {"phase": self.phase, "version": version("hansa"), "at": time()}
        connection.publish(self._subjects.life(self._kit.name), json.dumps(state).encode())

    def _look(self, session: Session) -> None:
        question = self._subjects.latest(self._subjects.request(self._kit.name))
        message = session.do(lambda connection: connection.request(question))
        if not message.status:
            self._hear(message.payload)

    def _hear(self, letter: bytes) -> None:
        """Take up a letter that is from our parent, to us, and not older than what we have seen."""
        try:
            if not self._kit.trusts(self._parent.node):
                raise EnvelopeError("whoever asks was revoked")
            public = self._kit.public(self._parent.node)
            envelope = unseal(letter, self._parent.node, self._kit.name, public)
            self._known.check(envelope)
        except EnvelopeError as why:
            self._refuse(str(why))
            return
        except OSError as error:  # a full disk, most likely: the letter stays in its box, and is looked at again
            self._refuse(f"it cannot be noted that it came ({error.strerror})")
            return
        with self._news:
            if self._letter is None or envelope.mark != self._letter.mark:
                self._letter = envelope
                self._news.notify_all()

    def _refuse(self, reason: str) -> None:
        """Counted, and each reason said once."""
        if reason not in self._refusals and len(self._refusals) >= REASONS:
            reason = "more reasons than are kept"
        self._refusals[reason] = self._refusals.get(reason, 0) + 1
        if self._refusals[reason] == 1:
            self._warn(f"a letter was refused: {reason}")

    # ── working ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _work_for_ever(self) -> None:
        torch.set_num_threads(1)
        session = self._session([], self._leaving, unsaid)
        porter = BlobClient(self._parent.weights, self._kit.client_tls(), self._patience, self._proxy)
        failed = (("", -1), 0)  # which letter, and how often
        while not self._stop.is_set():
            with self._news:
                self._news.wait_for(lambda: self._stop.is_set() or self._unread, timeout=LIFE_SECONDS)
                letter = self._letter if self._unread else None
                self._done = letter.mark if letter else self._done
            if letter is None:
                continue
            try:
                self._deal_with(letter, session, porter)
            except GaveUp:
                self._say(f"{letter.kind} of round {letter.round} is overtaken by a newer letter")
            except Refusal as refusal:
                self._warn(f"{letter.kind} of round {letter.round} is dropped: {refusal}")
            except Exception as error:
                # Whatever happens here must not end the agent: the letter stays in its box and is looked at again.
                self._warn(f"{letter.kind} of round {letter.round} failed: {type(error).__name__}: {error}")
                failed = (letter.mark, failed[1] + 1 if failed[0] == letter.mark else 1)
                self._fail(letter, error, failed[1], session, porter)
            self.phase = "idle"
        session.close()
        porter.close()

    def _fail(self, letter: Envelope, error: Exception, times: int, session: Session, porter: BlobClient) -> None:
        """What fails again and again (a full disk, most likely) is told to whoever waits: they may go on without us."""
        if times < TRIES:
            self._stop.wait(AGAIN_SECONDS)
            self._done = ("", -1)
            return
        reason = f"it failed {times} times: {type(error).__name__} (what it says stays there)"
        try:
            self._send(letter, loose(Failure.__name__, wire.split(Failure(reason))[0]), session, porter)
        except Exception as why:  # nor must this end the agent
            self._warn(f"{letter.kind} of round {letter.round}: nobody could be told ({type(why).__name__}: {why})")

    @property
    def _unread(self) -> bool:
        return self._letter is not None and self._letter.mark != self._done

    def _patience(self) -> Retry:
        return Retry(self._say, lambda: self._leaving() or self._unread)

    def _deal_with(self, letter: Envelope, session: Session, porter: BlobClient) -> None:
        spool = ReplyStore(self._folder(letter) / "spool")
        self._send(letter, spool.find(letter.request) or self._answer(letter, porter, spool), session, porter)

    def _send(self, letter: Envelope, packed: Packed, session: Session, porter: BlobClient) -> None:
        self.phase = "sending"
        refs = {name: porter.bring(view, letter.request, ref) for name, (ref, view) in packed.parts.items()}
        reply = Envelope(
            sender=self._kit.name,
            receiver=letter.sender,
            run=letter.run,
            begun=letter.begun,
            request=letter.request,
            sequence=letter.sequence,
            kind=packed.kind,
            round=letter.round,
            text=refs.pop(TEXT),
            vectors=refs,
        )
        sealed = seal(reply, self._kit.key)
        subject = self._subjects.reply(self._kit.name)
        session.do(lambda connection: connection.checked(connection.request(subject, sealed)))
        self._say(f"{letter.kind} of round {letter.round} is answered")

    def _answer(self, letter: Envelope, porter: BlobClient, spool: ReplyStore) -> Packed:
        """Fetch what was asked, work, and put the answer on disk before any of it leaves. Why there is none is not
        kept: asked again, we look again."""
        self.phase = "fetching"
        try:
            answer, request = self._fetched(letter, porter)
        except (Unusable, wire.BadMessage, UserError) as why:
            self._warn(f"{letter.kind} of round {letter.round} cannot be used: {why}")
            self._trade.refuse(letter.kind, letter.round, str(why))
            return loose(Failure.__name__, wire.split(Failure(f"the request cannot be used: {why}"))[0])
        spool.forget(getattr(request, "durable", 0))
        self.phase, self.due = "working", _due(letter)
        self._say(f"{letter.kind} of round {letter.round}")
        try:
            reply = attempt(answer, request)
        except UserError as error:  # it may name files, fields or labels of ours: that is for our operator alone
            self._warn(f"{letter.kind} of round {letter.round}: {error}")
            reply = Failure(f"its data or settings cannot be used ({type(error).__name__}): its own log says why")
        text, vectors = wire.split(reply)
        if isinstance(reply, Failure):
            self._warn(f"{letter.kind} of round {letter.round}: {reply.reason}")
            return loose(Failure.__name__, text)
        return spool.keep(letter.request, letter.round, type(reply).__name__, text, vectors)

    def _fetched(self, letter: Envelope, porter: BlobClient) -> tuple[Callable[[Request], Reply], Request]:
        answer = self._open(letter, porter)
        announced = letter.text[1] + sum(size for _, size in letter.vectors.values())
        self._buffers = {name: buffer for name, buffer in self._buffers.items() if name in letter.vectors}
        held = sum(buffer.nbytes for buffer in self._buffers.values())
        room.check_request(announced, _model_size(self._folder(letter)), held)
        text = bytes(self._bytes(porter, letter.text, LARGEST_TEXT))
        vectors = {name: self._vector(porter, name, ref) for name, ref in letter.vectors.items()}
        try:
            request = wire.join(text.decode(), vectors)
        except UnicodeDecodeError:
            raise Unusable("its text is not UTF-8") from None
        if not isinstance(request, Request):
            raise Unusable(f"a {type(request).__name__} is no request")
        return answer, request

    def _folder(self, letter: Envelope) -> Path:
        return self._home / "runs" / letter.run

    def _open(self, letter: Envelope, porter: BlobClient) -> Callable[[Request], Reply]:
        """The model and the data of this run, loaded when they are first needed and kept."""
        if self._opened is not None and (self._opened.run, self._opened.start) == (letter.run, letter.start):
            return self._opened.answer
        folder = self._folder(letter)
        if letter.settings is None:
            raise Unusable("it brings no settings")
        settings = self._bytes(porter, letter.settings, LARGEST_SETTINGS)
        if letter.start is not None and not (folder / "start").exists():
            room.check_memory(letter.start[1])
            room.check_disk(letter.start[1], folder)
            bundle = memoryview(bytearray(letter.start[1]))
            porter.fetch(letter.start, bundle)
            unpack(bundle, folder / "start")
        answer = self._trade.open(folder, bytes(settings))
        self._opened = Opened(letter.run, letter.start, folder, answer)
        return answer

    def _bytes(self, porter: BlobClient, ref: Ref, largest: int) -> memoryview:
        if ref[1] > largest:
            raise Unusable(f"{ref[1]} bytes are announced, and {largest} are the most")
        target = memoryview(bytearray(ref[1]))
        porter.fetch(ref, target)
        return target

    def _vector(self, porter: BlobClient, name: str, ref: Ref) -> torch.Tensor:
        """Into memory that is kept from round to round."""
        floats, rest = divmod(ref[1], 4)
        if rest:
            raise Unusable(f"{ref[1]} bytes are no float32 vector")
        if name not in self._buffers or self._buffers[name].numel() != floats:
            self._buffers[name] = torch.empty(floats)
        porter.fetch(ref, wire.as_bytes(self._buffers[name]))
        return self._buffers[name]


def _due(letter: Envelope) -> float | None:
    """Clocks differ: no letter comes before it was written, and one that seems overdue may only meet a clock that is
    ahead of its sender's, so that it has all of its time."""
    if letter.until is None:
        return None
    whole, left = letter.until - letter.at, letter.until - time()
    return monotonic() + (min(whole, left) if left > 0 else whole)


def _model_size(folder: Path) -> int:
    """Bytes of the weights that the run started from; none before there are any."""
    return sum(file.stat().st_size for file in (folder / "start").glob("*.safetensors"))


class _Known:
    """How far we have read, on disk: an older letter is a replay, however it came."""

    def __init__(self, file: Path, say: Say = lambda text: None) -> None:
        self._file = file
        self._state: dict[str, Any] = {"run": "", "begun": 0.0, "sequence": -1}
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
            run, begun, sequence = str(found["run"]), float(found["begun"]), int(found["sequence"])
            self._state = {"run": run, "begun": begun, "sequence": sequence}
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError) as error:
            say(f"{file} is damaged ({type(error).__name__}): which letters are old is found out anew")

    def check(self, letter: Envelope) -> None:
        state = self._state
        if letter.run == state["run"]:
            if letter.sequence < state["sequence"]:
                raise EnvelopeError("it is older than what was seen before")
        elif letter.begun <= state["begun"]:
            raise EnvelopeError("it belongs to an older run")
        if (letter.run, letter.sequence) != (state["run"], state["sequence"]):
            newer = {"run": letter.run, "begun": letter.begun, "sequence": letter.sequence}
            draft = self._file.with_suffix(".draft")
            draft.write_text(json.dumps(newer), encoding="utf-8")
            os.replace(draft, self._file)
            self._state = newer
