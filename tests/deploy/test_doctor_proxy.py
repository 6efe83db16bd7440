"""`hansa doctor` reaches the coordinator as `hansa join` does: through real proxies, also one that inspects TLS."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hansa.cli.main import app
from hansa.core.errors import UserError
from hansa.deploy.kit import COORDINATOR, Kit
from hansa.deploy.standing import standing_server
from tests.conftest import Build
from tests.deploy.conftest import make_kits
from tests.deploy.inspector import Inspector
from tests.deploy.tunnel import Tunnel

VARIABLES = ("HANSA_PROXY", "HANSA_TRUST", "HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy")


@pytest.fixture
def kits(federation: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Kits of a federation whose coordinator serves; no proxy is set."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    made = make_kits(federation(), tmp_path / "kits")
    said: list[str] = []  # not to the terminal, whose lines the tests read
    with standing_server(Kit(made / COORDINATOR), tmp_path / "server", None, said.append):
        yield made


def findings(kits: Path, *options: str) -> dict[str, tuple[str, str, str]]:
    """Check → state, what was seen and the remedy, of `hansa doctor` with the kit of a silo."""
    done = CliRunner().invoke(app, ["doctor", str(kits / "north"), "--format", "json", *options])
    if isinstance(done.exception, UserError):
        raise done.exception
    found = json.loads(done.stdout)
    assert found["ok"] is (done.exit_code == 0)
    return {one["check"]: (one["state"], one["seen"], one["remedy"]) for one in found["findings"]}


def test_without_a_proxy(kits: Path) -> None:
    found = findings(kits)
    assert found["proxy"][:2] == ("ok", "neither --proxy nor HTTPS_PROXY names one")
    assert found["ports"][0] == "ok"
    assert found["ports"][1].endswith("answers with the federation's certificate")


def test_the_environments_proxy_is_used_as_join_uses_it(kits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Tunnel() as tunnel:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{tunnel.port}")
        found = findings(kits)
        assert found["proxy"][:2] == ("ok", f"connections go through 127.0.0.1:{tunnel.port} (HTTPS_PROXY)")
        assert found["ports"][0] == "ok"
        assert tunnel.passed == [f"localhost:{Kit(kits / 'north').parent.port}"]


def test_no_proxy_is_followed(kits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Tunnel() as tunnel:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{tunnel.port}")
        monkeypatch.setenv("NO_PROXY", "localhost")
        found = findings(kits)
        assert found["proxy"][0] == found["ports"][0] == "ok"
        assert found["proxy"][1].startswith("NO_PROXY lists localhost")
        assert tunnel.passed == []
        # an option counts before the environment
        found = findings(kits, "--proxy", f"http://127.0.0.1:{tunnel.port}")
        assert found["proxy"][1] == f"connections go through 127.0.0.1:{tunnel.port} (--proxy or HANSA_PROXY)"
        assert len(tunnel.passed) == 1


def test_a_proxy_that_refuses_the_port_is_named(kits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Tunnel(allowed=443) as tunnel:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{tunnel.port}")
        state, seen, remedy = findings(kits)["ports"]
        assert state == "error"
        assert "refused the connection: 403" in seen
        assert remedy.startswith(f"let the proxy 127.0.0.1:{tunnel.port} open tunnels")


def test_a_proxy_that_cannot_be_used_is_a_finding_and_an_option_a_mistake(
    kits: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "socks5://127.0.0.1:1080")
    found = findings(kits)
    assert found["proxy"][0] == "error"
    assert "HTTPS_PROXY" in found["proxy"][1]
    assert "ports" not in found, "join does not connect either"
    for option, value in (("--proxy", "socks5://127.0.0.1:1080"), ("--trust", str(tmp_path / "none.pem"))):
        with pytest.raises(UserError, match=option) as refused:
            findings(kits, option, value)
        assert refused.value.exit_code == 2


def test_a_proxy_that_inspects_tls_needs_its_authority(kits: Path, tmp_path: Path) -> None:
    with Inspector(tmp_path / "proxy", kits / COORDINATOR / "ca.pem") as inspector:
        through = ("--proxy", f"http://127.0.0.1:{inspector.port}")
        found = findings(kits, *through, "--trust", str(inspector.trust))
        assert found["ports"][0] == "ok"
        assert "a signature through what inspects TLS" in found["ports"][1]
        assert b"GET /nats" in inspector.seen, "it went through the proxy"
        without = findings(kits, *through)
        assert without["ports"][0] == "error"
        assert "--trust" in without["ports"][2]
        other = findings(kits, *through, "--trust", str(kits / "north" / "ca.pem"))
        assert other["ports"][0] == "error"
        assert "put the authority of the proxy" in other["ports"][2]
    direct = findings(kits, "--trust", str(inspector.trust))
    assert direct["ports"][0] == "error"
    assert "if none does, leave --trust out" in direct["ports"][2]


def test_another_policy_than_the_kits(kits: Path, tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text("rules: nonsense")
    assert findings(kits)["policy"][0] == "ok"
    found = findings(kits, "--policy", str(tmp_path / "policy.yaml"))
    assert found["policy"][0] == "error"
    assert found["policy"][2] == f"correct {tmp_path / 'policy.yaml'}"
