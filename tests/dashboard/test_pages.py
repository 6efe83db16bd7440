"""What the dashboard shows: figures, live parts, comparisons, the model; and names that try to be code."""

import io
import json
import re
import sqlite3
import zipfile
from html.parser import HTMLParser
from pathlib import Path

import anyio
import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from hansa.core.errors import UserError
from hansa.dashboard.accounts import Accounts, Role
from hansa.dashboard.app import create
from hansa.dashboard.live import events
from hansa.dashboard.run_view import read_run
from hansa.dashboard.serving import Address
from hansa.dashboard.submissions import Submissions
from tests.dashboard.conftest import EVIL, PASSWORD, Clients, add_round, log_in, token, write_run


class Checker(HTMLParser):
    """Collects what a page contains: elements, attributes that run code, addresses outside the page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.bad: list[str] = []
        self.labelled: set[str] = set()
        self.fields: set[str] = set()
        self.tables = self.captions = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.tags.append(tag)
        self.bad += [name for name in values if name.startswith("on") or name == "style"]
        self.bad += [v for n, v in values.items() if n in ("src", "href", "action") and re.match(r"\w+:|//", v)]
        if tag == "script" and not values.get("src", "").startswith("/static/"):
            self.bad.append(f"script {values}")
        self.tables += tag == "table"
        self.captions += tag == "caption"
        if tag == "label":
            self.labelled.add(values.get("for", ""))
        if tag in ("input", "textarea") and values.get("type") != "hidden" and "aria-label" not in values:
            self.fields.add(values.get("id", "without an id"))


def check(text: str) -> None:
    """A page loads nothing from outside, runs nothing inline, and names its fields and tables."""
    page = Checker(text)
    assert not page.bad
    assert page.tables == page.captions
    assert page.fields <= page.labelled
    assert page.tags.count("h1") == page.tags.count("main") == 1
    assert '<html lang="en">' in text


def test_a_run_shows_its_curves_silos_traffic_refusals_and_log(runs: Path, client_of: Clients) -> None:
    write_run(runs / "clinics-now")
    text = client_of("reader").get("/runs/clinics-now").text
    check(text)
    for words in (
        "perplexity by language",
        "training loss by silo",
        "2 of 3",
        "Awaited:",
        "Train of round 3",
        "a bad envelope of lyon",
        "no reply lyon",
        "met lyon",
        "66.7 %",  # turin's samples of the last round
        "8 MB",
    ):
        assert words in text
    assert "Download the model" not in text
    assert "Download the model" in client_of("submitter").get("/runs/clinics").text


def test_names_are_never_code(tmp_path: Path, accounts: Accounts) -> None:
    write_run(tmp_path / "evil" / "clinics", (EVIL, "turin"))
    name = EVIL.replace("/", "")
    write_run(tmp_path / "evil" / f"clinics{name}", (EVIL, "turin"), model=True)
    silos = json.dumps({"a": {"train": EVIL}, "b": {"train": "b"}})
    Submissions(tmp_path / "evil").add(f"name: clinics\ntask: mlm\nmodel: mini\nsilos: {silos}\n", EVIL)
    client = TestClient(create(tmp_path / "evil", accounts, secure=False), base_url="http://127.0.0.1")
    assert log_in(client, "approver") == 303
    listed = client.get("/").text
    links = sorted(set(re.findall(r'href="(/runs/[^"]+)"', listed)))
    assert len(links) == 2
    pages = [listed, client.get("/submissions").text]
    pages += [client.get(link).text for link in links]
    ids = [re.sub("^/runs/", "", link) for link in links]
    pages.append(client.get(f"/compare?run={ids[0]}&run={ids[1]}").text)
    for page in pages:
        check(page)
        assert "alert(" in page  # the name is shown, as text
        assert "<script>alert" not in page
        assert "\u202e" not in re.sub('value="[^"]*"', "", page)  # it would turn the text after it around
    archive = client.get(f"{links[1]}/model.zip")
    assert archive.headers["content-disposition"].isascii()
    assert "<" not in archive.headers["content-disposition"]


def test_the_model_is_streamed_as_a_zip_file(runs: Path, client_of: Clients) -> None:
    (runs / "clinics" / "model" / "outside").symlink_to(runs / "secret" / "federation.yaml")
    answer = client_of("submitter").get("/runs/clinics/model.zip")
    archive = zipfile.ZipFile(io.BytesIO(answer.content))
    assert sorted(archive.namelist()) == ["model/config.json", "model/model.safetensors"]
    assert archive.testzip() is None
    assert archive.read("model/model.safetensors") == (runs / "clinics" / "model" / "model.safetensors").read_bytes()


def test_comparison_lists_the_settings_that_differ(runs: Path, client_of: Clients) -> None:
    write_run(runs / "clinics-2", rounds=9)
    text = client_of("reader").get("/compare?run=clinics&run=clinics-2").text
    check(text)
    assert "rounds: 3 → 9" in text
    assert "perplexity, mean over languages" in text


def test_live_parts_follow_the_ledger(runs: Path) -> None:
    """The stream sends every part once, then what a new round changes, and ends with the session."""
    folder, alive = runs / "clinics", [True]
    found: list[dict[str, str]] = []

    async def listen() -> None:
        async for event in events(lambda: {"rounds": str(read_run(folder, "clinics").summary.done)}, lambda: alive[0]):
            if not event.startswith(b"event: parts\ndata: "):
                continue
            found.append(json.loads(event.split(b"data: ")[1]))
            if len(found) == 1:
                with sqlite3.connect(folder / "ledger.sqlite") as db:
                    add_round(db, 3, ("lyon", "turin"))
                db.close()
            else:
                alive[0] = False

    anyio.run(listen)
    assert found == [{"rounds": "2"}, {"rounds": "3"}]


def test_a_damaged_run_is_one_sentence(runs: Path, client_of: Clients) -> None:
    (runs / "clinics" / "ledger.sqlite").write_bytes(b"not a database" * 100)
    client = client_of("reader")
    assert "no run that your account may see" in client.get("/").text
    answer = client.get("/runs/clinics")
    assert answer.status_code == 400
    assert "cannot be read" in answer.text
    assert "Traceback" not in answer.text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("name: [", "not valid YAML"),
        ("a: &x [1]\nb: *x\n", "aliases"),
        ("just words", "a federation file is a mapping of settings"),
        ("name: x\nname: y\nsilos: {a: {train: b}}", "&#39;name&#39; is given twice"),
        ("name: x\nnonsense: 1\nsilos: {a: {train: b}}", "nonsense"),
    ],
)
def test_a_submission_that_is_no_federation_file_is_one_sentence(client_of: Clients, text: str, reason: str) -> None:
    client = client_of("submitter")
    answer = client.post("/submissions", data={"csrf": token(client), "text": text})
    assert answer.status_code == 400
    assert reason in answer.text
    assert "Nothing was submitted" in answer.text


def test_the_dashboard_works_below_another_site(app: FastAPI) -> None:
    outer = FastAPI()
    outer.mount("/pages", app)
    client = TestClient(outer, base_url="http://127.0.0.1")
    text = client.get("/pages/login").text
    found = re.search(r'name="csrf" value="([^"]+)"', text)
    assert found is not None
    form = {"csrf": found[1], "name": "reader", "password": PASSWORD}
    page = client.post("/pages/login", data=form)
    assert page.status_code == 200
    assert 'href="/pages/runs/clinics"' in page.text
    assert client.get("/pages/runs/clinics").status_code == 200
    assert 'data-events="/pages/runs/clinics/events"' in client.get("/pages/runs/clinics").text
    assert client.get("/pages/static/style.css").status_code == 200


def test_pages_without_tls_stay_on_this_machine(tmp_path: Path) -> None:
    assert Address.parse("8080", None, None).host == "127.0.0.1"
    assert Address.parse("[::1]:8080", None, None).host == "::1"
    for text in ("0.0.0.0:8080", "10.0.0.1:8080", "hospital.example.org:8080", "[::]:8080"):
        with pytest.raises(UserError, match="without encryption"):
            Address.parse(text, None, None)
    with pytest.raises(UserError, match="PORT"):
        Address.parse("8080x", None, None)
    with pytest.raises(UserError, match="cannot be used"):
        Address.parse("0.0.0.0:8080", tmp_path / "no.pem", tmp_path / "no.pem")


def test_secure_cookies(runs: Path, accounts: Accounts) -> None:
    client = TestClient(create(runs, accounts, secure=True), base_url="https://dashboard.example.org")
    answer = client.get("/login")
    cookie = answer.headers["set-cookie"].lower()
    assert "secure" in cookie
    assert "httponly" in cookie
    assert "samesite=lax" in cookie
    assert "max-age" in answer.headers["strict-transport-security"]


def test_accounts_keep_no_password(tmp_path: Path) -> None:
    held = Accounts(tmp_path / "accounts.json")
    held.add("anna", PASSWORD, Role.reader)
    text = held.file.read_text()
    assert PASSWORD not in text
    assert "$argon2id$" in text
    assert held.file.stat().st_mode & 0o777 == 0o600
    assert held.check("anna", PASSWORD) == held.find("anna")
    assert held.check("anna", PASSWORD + "x") is None
    assert held.check("bert", PASSWORD) is None
    for name, password in (("a b", PASSWORD), ("oidc:42", PASSWORD), ("anna", "short")):
        with pytest.raises(UserError):
            held.add(name, password, Role.reader)
    held.file.write_text("{}")
    with pytest.raises(UserError, match="not a file of accounts"):
        held.all()
