"""Several runs on one port: each has its own messages and spool; studies with different members; status while idle."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic, sleep, time
from typing import Any

import pytest

from hansa.core.messages import CollectVocabulary, Request, VocabularyCounts
from hansa.deploy import standing
from hansa.deploy.agent import Agent
from hansa.deploy.kit import COORDINATOR, Kit
from hansa.deploy.network.blob_server import BlobServer
from hansa.deploy.network.envelope import NO_RUN
from hansa.deploy.network.subjects import ANY_RUN, Subjects, token
from hansa.deploy.standing import standing_server
from hansa.deploy.status import is_running, read_status
from tests.conftest import Build
from tests.deploy.conftest import make_kits

WAIT_SECONDS = 60.0


def no_log(text: str) -> None:
    pass


class Study:
    """Answers with the settings of the run in which it is asked; notes how many answers are made at the same time."""

    anchors = None

    def __init__(self, seconds: float = 0.0) -> None:
        self.opened: list[str] = []
        self.most = self._now = 0
        self._seconds, self._lock = seconds, threading.Lock()
        self.go_on = threading.Event()  # ends the wait

    def open_run(self, folder: Path, settings: bytes) -> Any:
        name = settings.decode()
        self.opened.append(name)

        def answer(request: Request) -> VocabularyCounts:
            assert isinstance(request, CollectVocabulary)
            with self._lock:
                self._now += 1
                self.most = max(self.most, self._now)
            self.go_on.wait(self._seconds)
            with self._lock:
                self._now -= 1
            return VocabularyCounts({name: request.min_count})

        return answer

    def log_refusal(self, message: str, round: int, reason: str) -> None:
        raise AssertionError(f"{message}: {reason}")


class Scene:
    """Two runs, `one` with north and south, `two` with north and east, on the port of one coordinator."""

    def __init__(self, kits: Path, folder: Path, stack: ExitStack) -> None:
        self.kits, self.folder = kits, folder
        self.server = stack.enter_context(standing_server(Kit(kits / COORDINATOR), folder / "server", None, no_log))
        runs = {"one": ["north", "south"], "two": ["north", "east"]}
        self.links = {
            name: stack.enter_context(self.server.open_run(folder / name / "server", children, no_log))
            for name, children in runs.items()
        }
        for name, link in self.links.items():
            link.share_settings(name.encode())

    @contextmanager
    def agent(self, name: str, study: Study, at_once: int = 1) -> Iterator[list[str]]:
        lines: list[str] = []
        services = [study] * at_once if at_once > 1 else []
        agent = Agent(Kit(self.kits / name), self.folder / name, study, lines.append, services=services)
        thread = threading.Thread(target=agent.run, daemon=True)
        thread.start()
        try:
            yield lines
        finally:
            agent.stop()
            thread.join(WAIT_SECONDS)

    def ask(self, run: str, node: str, number: int) -> Any:
        [answer] = self.links[run].ask({node: CollectVocabulary(number)}, monotonic() + WAIT_SECONDS)
        return answer.reply


@pytest.fixture
def scene(federation: Build, tmp_path: Path) -> Iterator[Scene]:
    kits = make_kits(federation(), tmp_path / "kits")
    with ExitStack() as stack:
        yield Scene(kits, tmp_path, stack)


def sent(lines: list[str]) -> int:
    return sum("reply sent" in line for line in lines)


def wait(condition: Any, seconds: float = WAIT_SECONDS) -> None:
    until = monotonic() + seconds
    while not condition():
        assert monotonic() < until, "it did not happen in time"
        sleep(0.01)


def ask_while_away(scene: Scene, seconds: float = WAIT_SECONDS) -> None:
    """Both runs ask north while it is away; it answers both when it comes, and sends each reply once."""
    for number, link in enumerate(scene.links.values(), start=1):
        link.post({"north": CollectVocabulary(number)})
    with scene.agent("north", Study()) as lines:
        wait(lambda: sent(lines) >= 2, seconds)
        sleep(0.2)  # the coordinator may be about to ask for one of them again
        for number, run in enumerate(scene.links, start=1):
            assert scene.links[run].next_arrival(["north"], monotonic() + WAIT_SECONDS) == "north"
            assert scene.ask(run, "north", number) == VocabularyCounts({run: number})
        sleep(0.3)  # the agent logs a reply after the coordinator has it
        assert sent(lines) == 2, "each reply is sent once"


def test_two_runs_ask_a_silo_that_is_away(scene: Scene) -> None:
    ask_while_away(scene)


def test_control_runs_that_share_subjects_lose_a_request(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check fails if the broker stores one request for both runs."""

    def shared(self: Subjects, node: str) -> str:
        return f"{self.root}.req.{token(node)}.{ANY_RUN if self.run == ANY_RUN else NO_RUN}"

    receive = Agent._receive
    monkeypatch.setattr(Subjects, "request", shared)
    monkeypatch.setattr(Agent, "_receive", lambda self, data, run=None: receive(self, data))
    with pytest.raises(AssertionError, match="it did not happen in time"):
        ask_while_away(scene, 3.0)


def test_control_runs_that_share_a_spool_delete_each_others_replies(
    federation: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check fails if both runs keep uploads in one folder."""
    monkeypatch.setattr(standing, "BlobServer", lambda folder, *more: BlobServer(tmp_path / "spool", *more))
    kits = make_kits(federation(), tmp_path / "kits")
    with ExitStack() as stack, pytest.raises(AssertionError, match="each reply is sent once"):
        ask_while_away(Scene(kits, tmp_path, stack))


@pytest.mark.parametrize("at_once", [1, 2])
def test_an_agent_works_on_as_many_runs_at_once_as_it_may(scene: Scene, at_once: int) -> None:
    study = Study(seconds=0.3)
    with scene.agent("north", study, at_once):
        found: dict[str, Any] = {}

        def rounds(run: str) -> None:
            found[run] = [scene.ask(run, "north", number) for number in (1, 2, 3)]

        threads = [threading.Thread(target=rounds, args=(run,)) for run in scene.links]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_SECONDS)
    assert found == {run: [VocabularyCounts({run: number}) for number in (1, 2, 3)] for run in scene.links}
    assert study.most == at_once
    assert len(study.opened) == 2 if at_once == 2 else len(study.opened) >= 2, "one worker may open a run several times"


def test_each_study_asks_its_own_members(scene: Scene) -> None:
    south, east = Study(), Study()
    with scene.agent("south", south), scene.agent("east", east):
        assert scene.ask("one", "south", 1) == VocabularyCounts({"one": 1})
        assert scene.ask("two", "east", 1) == VocabularyCounts({"two": 1})
    assert (south.opened, east.opened) == (["one"], ["two"])


def test_the_status_says_whom_each_run_waits_for(scene: Scene) -> None:
    """North is busy with run one, so run two waits for it; the coordinator's own status names both runs."""
    study = Study(seconds=WAIT_SECONDS)
    with scene.agent("north", study):
        threads = [threading.Thread(target=scene.ask, args=(run, "north", 1)) for run in scene.links]
        threads[0].start()
        wait(lambda: _north(scene.folder / "one").phase == "working")
        threads[1].start()
        wait(lambda: _north(scene.folder / "two").phase == "working (another run)")
        assert _north(scene.folder / "two").awaited == "CollectVocabulary of round 0"
        whole = {node.node: node for node in read_status(scene.folder, time())}
        assert set(whole) == {"north", "south", "east"}
        awaited = "CollectVocabulary of round 0 (one); CollectVocabulary of round 0 (two)"
        assert whole["north"].awaited == awaited
        assert {node.node for node in read_status(scene.folder / "two", time())} == {"north", "east"}
        study.go_on.set()
        for thread in threads:
            thread.join(WAIT_SECONDS)
    assert is_running(scene.folder)


def _north(folder: Path) -> Any:
    return next(node for node in read_status(folder, time()) if node.node == "north")
