"""Publishing a model: a folder, a hub (a small one on this machine), MLflow's registry."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml
from transformers import AutoModelForMaskedLM

from hansa.core.errors import RunFailed, UserError
from hansa.runs.push import push
from hansa.runs.run import run
from tests.conftest import Build


@pytest.fixture
def finished(federation: Build, tmp_path: Path) -> Path:
    settings = federation(model="mini", rounds=0, tokenizer={"kind": "bytes"}, licence="apache-2.0")
    return run(settings, tmp_path / "run", workers=0).folder


def test_a_folder_has_what_a_hub_expects(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Path(push(finished, str(tmp_path / "repository")))
    names = {file.name for file in place.iterdir()}
    assert {"README.md", ".gitattributes", "config.json", "model.safetensors", "tokenizer.json"} <= names
    assert AutoModelForMaskedLM.from_pretrained(place).config.model_type == "bert"
    metadata = yaml.safe_load((place / "README.md").read_text(encoding="utf-8").split("---")[1])
    assert metadata["license"] == "apache-2.0"
    assert metadata["pipeline_tag"] == "fill-mask"
    [index] = metadata["model-index"]
    assert {one["dataset"]["name"] for one in index["results"]} == {
        f"small, test data: {name}" for name in ("north", "south", "east")
    }
    assert all(one["metrics"][0]["value"] > 0 for one in index["results"])
    with pytest.raises(UserError, match="exists"):
        push(finished, str(place))
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    with pytest.raises(UserError, match="no token of a Hugging Face hub"):
        push(finished, "hub:clinic/model")


class Hub(BaseHTTPRequestHandler):
    """So much of a hub's interface as an upload of small files needs."""

    received: ClassVar[list[tuple[str, bytes]]] = []
    refuses: ClassVar[bool] = False

    @property
    def here(self) -> str:
        return f"http://{self.headers['host']}/clinic/model"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.received.append((self.path, body))
        assert self.headers["authorization"] == "Bearer hf_secret"
        if "preupload" in self.path:
            files = [
                {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in json.loads(body)["files"]
            ]
            answer: Any = {"files": files}
        elif "commit" in self.path:
            answer = {"commitUrl": f"{self.here}/commit/1", "commitOid": "1" * 40, "pullRequestUrl": None}
        else:
            answer = {"url": self.here, "id": "clinic/model", "name": "clinic/model"}
        self._send(403 if self.refuses else 200, answer)

    def do_GET(self) -> None:
        self._send(200, {"id": "clinic/model", "sha": "1" * 40, "siblings": []})

    def _send(self, code: int, answer: Any) -> None:
        text = json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *arguments: Any) -> None:
        """Say nothing."""


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hub]]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    Hub.received, Hub.refuses = [], False
    monkeypatch.setattr("huggingface_hub.get_token", lambda: "hf_secret")
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    yield Hub
    server.shutdown()
    server.server_close()


def test_a_hub_gets_every_file_and_a_private_repository(finished: Path, hub: type[Hub]) -> None:
    place = push(finished, "hub:clinic/model")
    paths = [path for path, _ in hub.received]
    assert any("repos/create" in path for path in paths)
    created = next(json.loads(body) for path, body in hub.received if "repos/create" in path)
    assert created.get("private") is True or created.get("visibility") == "private"
    commit = next(body for path, body in hub.received if "/commit/" in path).decode()
    sent = {json.loads(line)["value"]["path"] for line in commit.splitlines() if '"file"' in line}
    assert {"README.md", "config.json", "model.safetensors", "tokenizer.json"} <= sent
    assert "commit" in place
    hub.refuses = True
    with pytest.raises(RunFailed, match="the hub did not take clinic/model"):
        push(finished, "hub:clinic/model")


@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy")  # inside MLflow
def test_the_registry_counts_versions(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'registry.db'}")
    assert [push(finished, "mlflow:notes") for _ in range(2)] == ["models:/notes/1", "models:/notes/2"]
    version = mlflow.MlflowClient().get_model_version("notes", "2")
    assert (Path(version.source.removeprefix("file://")) / "config.json").is_file()
