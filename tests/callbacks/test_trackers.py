"""What TensorBoard, MLflow and W&B stored equals the ledger, value by value; read back with their own libraries."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from typer.testing import CliRunner

import hansa
from hansa.callbacks import MLflow, TensorBoard, WandB
from hansa.cli.main import app
from hansa.runs.ledger import Ledger
from tests.api.conftest import Make

pytestmark = pytest.mark.filterwarnings("ignore")  # of the three libraries

Values = dict[tuple[str, int], float]


def ledger_values(folder: Path) -> Values:
    """Everything that a tracker must have, by name and round."""
    ledger = Ledger(folder)
    found: Values = {}
    for round, split, group, metric, value in ledger.select("select round, split, grp, metric, value from metrics"):
        found[f"{split}/{group}/{metric}", round] = value
    for round, silo, split, group, metric, value in ledger.select(
        "select round, silo, split, grp, metric, value from silo_metrics"
    ):
        found[f"silos/{silo}/{split}/{group}/{metric}", round] = value
    for round, loss, lost in ledger.select("select round, loss, lost from rounds"):
        found["train/loss", round] = loss
        found["round/lost", round] = lost
    for round, silo, loss in ledger.select("select round, node, loss from traffic"):
        found[f"silos/{silo}/train/loss", round] = loss
    for round, down, up in ledger.select("select round, sum(sent), sum(received) from traffic group by round"):
        found["round/bytes_down", round] = down
        found["round/bytes_up", round] = up
    ledger.close()
    return found


def without_seconds(values: Values) -> Values:
    return {key: value for key, value in values.items() if key[0] != "round/seconds"}


def wandb_records(data: bytes) -> Iterator[bytes]:
    """The records of a .wandb file, a LevelDB log: blocks of 32 KiB with pieces of records, the first after 7 bytes."""
    place, held = 7, b""
    while place + 7 <= len(data):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        held += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # a whole record, or the last piece of one
            yield held
            held = b""


def test_tensorboard_has_the_values_of_the_ledger(make: Make, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    result = hansa.run(make(), out=tmp_path / "run", workers=0, callbacks=[TensorBoard()], progress=False)
    events = EventAccumulator(str(result.folder / "tensorboard"), {"tensors": 0, "scalars": 0})
    events.Reload()
    stored: Values = {(tag, e.step): e.value for tag in events.Tags()["scalars"] for e in events.Scalars(tag)}
    for tag in events.Tags()["tensors"]:
        for event in events.Tensors(tag):
            array = make_ndarray(event.tensor_proto)
            if array.dtype.kind == "f":
                stored[tag, event.step] = array.item()
    expected = ledger_values(result.folder)
    assert without_seconds(stored).keys() == expected.keys()
    assert without_seconds(stored) == pytest.approx(expected, rel=0, abs=0)


def test_mlflow_has_the_values_of_the_ledger(make: Make, tmp_path: Path) -> None:
    from mlflow import MlflowClient

    tracker = MLflow(uri=f"sqlite:///{tmp_path}/mlflow.db")
    result = hansa.run(make(), out=tmp_path / "run", workers=0, callbacks=[tracker], progress=False)
    client = MlflowClient(tracking_uri=tracker.uri)
    run = client.get_run(tracker.run_id)
    stored: Values = {}
    for name in run.data.metrics:
        stored |= {(name, one.step): one.value for one in client.get_metric_history(tracker.run_id, name)}
    assert without_seconds(stored) == ledger_values(result.folder)
    assert run.info.status == "FINISHED"
    assert run.data.params["rounds"] == "2"
    assert str(tmp_path) not in json.dumps(run.data.params), "paths of this machine stay here"


def test_wandb_has_the_values_of_the_ledger(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from wandb.proto import wandb_internal_pb2

    monkeypatch.delenv("WANDB_MODE", raising=False)
    result = hansa.run(make(), out=tmp_path / "run", workers=0, callbacks=[WandB()], progress=False)
    [file] = (result.folder / "wandb").glob("offline-run-*/*.wandb")
    stored: Values = {}
    for data in wandb_records(file.read_bytes()):
        record: Any = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        items = {(i.key or "/".join(i.nested_key)): json.loads(i.value_json) for i in record.history.item}
        stored |= {(key, items["round"]): value for key, value in items.items() if not key.startswith(("_", "round"))}
        stored |= {(key, items["round"]): value for key, value in items.items() if key.startswith("round/")}
    assert without_seconds(stored) == ledger_values(result.folder)


def test_a_tracker_whose_server_is_away_does_not_end_the_run(
    make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    began = monotonic()
    result = hansa.run(make(), out=tmp_path / "run", workers=0, callbacks=[MLflow(uri=address)])
    assert result.metrics
    assert monotonic() - began < 60, "it gives up after seconds"
    said = " ".join(capsys.readouterr().err.split())
    assert f"MLflow failed in on_run_start: MLflow at {address} did not take the values" in said
    assert "the run goes on without it" in said
    required = MLflow(uri=address, required=True)
    with pytest.raises(hansa.RunFailed, match="it is required, so the run stops"):
        hansa.run(make(), out=tmp_path / "other", workers=0, callbacks=[required], progress=False)


def test_the_command_line_takes_trackers_by_name(make: Make, tmp_path: Path) -> None:
    file = tmp_path / "fed.yaml"
    hansa.Federation.from_settings(make().placed(tmp_path / "data")).to_yaml(file)
    command = ["run", str(file), "--out", str(tmp_path / "run"), "--workers", "0", "--track", "tensorboard"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert list((tmp_path / "run" / "tensorboard").glob("events.*"))
    wrong = CliRunner().invoke(app, [*command[:2], "--out", str(tmp_path / "other"), "--track", "tensorbord"])
    assert isinstance(wrong.exception, hansa.UserError)
    assert "did you mean 'tensorboard'" in str(wrong.exception)
