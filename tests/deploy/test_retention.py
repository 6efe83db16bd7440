"""What is deleted of old runs."""

import os
from pathlib import Path
from time import time

from hansa.deploy.lock_file import lock_folder
from hansa.deploy.retention import old_parts, prune


def a_run(runs: Path, name: str, days: float) -> Path:
    run = runs / name
    for part in ("server", "checkpoints", "model"):
        (run / part).mkdir(parents=True)
        (run / part / "bytes").write_bytes(b"x" * 10)
    ledger = run / "ledger.sqlite"
    ledger.touch()
    os.utime(ledger, (time() - days * 86400, time() - days * 86400))
    return run


def test_spools_and_checkpoints_of_old_runs_go_and_models_stay(tmp_path: Path) -> None:
    old, new, used = a_run(tmp_path, "old", 100), a_run(tmp_path, "new", 1), a_run(tmp_path, "used", 100)
    (tmp_path / "notes").mkdir()
    with lock_folder(used / "server", "hansa serve"):
        assert {one.folder for one in old_parts(tmp_path, 90)} == {old / "server", old / "checkpoints"}
        assert sum(one.size for one in prune(tmp_path, 90)) == 20
    assert sorted(path.name for path in old.iterdir()) == ["ledger.sqlite", "model"]
    assert (new / "server").exists()
    assert (used / "server").exists(), "a process works in it"
    prune(tmp_path, 90, whole=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "notes"]
