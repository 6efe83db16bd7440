"""Announced sizes are checked against the model, the memory of the machine or the container, and the disk."""

from pathlib import Path
from typing import Any

import pytest

from hansa.deploy import quota
from hansa.deploy.network.blob_protocol import InvalidRequest

GB = 1 << 30


def machine(root: Any, available: Any, **files: Any) -> Any:
    """Write the files in which Linux reports memory."""
    for name, text in {"proc/meminfo": f"MemTotal: 9 kB\nMemAvailable:  {available // 1024} kB\n", **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_without_a_container_the_memory_of_the_machine_counts(tmp_path: Path) -> None:
    assert quota.free_memory(machine(tmp_path, 4 * GB)) == 4 * GB
    assert quota.free_memory() > 0, "the real machine"


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max"}, 4 * GB),
        (
            {
                "proc/self/cgroup": "0::/\n",
                "sys/fs/cgroup/memory.max": str(2 * GB),
                "sys/fs/cgroup/memory.current": str(GB),
                "sys/fs/cgroup/memory.stat": f"anon 5\ninactive_file {GB // 2}\n",
            },
            GB + GB // 2,
        ),
        (  # the limit is set on the parent of this process's group
            {
                "proc/self/cgroup": "0::/pods/hansa\n",
                "sys/fs/cgroup/pods/hansa/memory.max": "max\n",
                "sys/fs/cgroup/pods/memory.max": f"{GB}\n",
                "sys/fs/cgroup/pods/memory.current": "0\n",
            },
            GB,
        ),
        (
            {
                "proc/self/cgroup": "5:cpu,memory:/x\n3:devices:/x\n",
                "sys/fs/cgroup/memory/x/memory.limit_in_bytes": str(GB),
                "sys/fs/cgroup/memory/x/memory.usage_in_bytes": str(2 * GB),
            },
            0,
        ),
    ],
    ids=["unlimited", "cgroups v2", "limit of a parent group", "cgroups v1"],
)
def test_in_a_container_its_limit_counts(tmp_path: Path, files: Any, free: Any) -> None:
    assert quota.free_memory(machine(tmp_path, 4 * GB, **files)) == free


def test_a_request_may_have_the_size_of_eight_models_and_an_allowance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota, "free_memory", lambda: 8 * GB)
    model = 100 << 20
    quota.check_request(8 * model + quota.ALLOWANCE, model)
    with pytest.raises(InvalidRequest, match="more than 8 models"):
        quota.check_request(8 * model + quota.ALLOWANCE + 1, model)
    with pytest.raises(InvalidRequest, match="more than 8 models"):
        quota.check_request(quota.ALLOWANCE + 1, 0)
    quota.check_request(int(5.9 * GB), GB)
    with pytest.raises(InvalidRequest, match="bytes of memory are free"):
        quota.check_request(int(6.1 * GB), GB)
    quota.check_request(int(6.1 * GB), GB, allocated=GB)  # allocated buffers are not counted


def test_a_request_must_fit_on_the_disk(tmp_path: Path) -> None:
    quota.check_disk(1000, tmp_path / "not" / "there" / "yet")
    with pytest.raises(InvalidRequest, match="of the disk are free"):
        quota.check_disk(1 << 60, tmp_path / "not" / "there" / "yet")
