"""What is announced is held against the model, the memory (a container's, where there is one) and the disk."""

import pytest

from hansa.deploy import quota as room
from hansa.deploy.network.blob_server import InvalidRequest

GB = 1 << 30


def machine(root, available, **files):
    """A file system with what Linux tells of memory."""
    for name, text in {"proc/meminfo": f"MemTotal: 9 kB\nMemAvailable:  {available // 1024} kB\n", **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_without_a_container_the_machine_counts(tmp_path):
    assert room.free_memory(machine(tmp_path, 4 * GB)) == 4 * GB
    assert room.free_memory() > 0, "the real one"


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
        (  # the limit stands above the group of this process
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
    ids=["unlimited", "second version", "above", "first version"],
)
def test_in_a_container_its_limit_counts(tmp_path, files, free):
    assert room.free_memory(machine(tmp_path, 4 * GB, **files)) == free


def test_a_request_may_bring_eight_models_and_some_more(monkeypatch):
    monkeypatch.setattr(room, "free_memory", lambda: 8 * GB)
    model = 100 << 20
    room.check_request(8 * model + room.BESIDE, model)
    with pytest.raises(InvalidRequest, match="more than 8 models"):
        room.check_request(8 * model + room.BESIDE + 1, model)
    with pytest.raises(InvalidRequest, match="more than 8 models"):
        room.check_request(room.BESIDE + 1, 0)
    room.check_request(int(5.9 * GB), GB)
    with pytest.raises(InvalidRequest, match="bytes of memory are free"):
        room.check_request(int(6.1 * GB), GB)
    room.check_request(int(6.1 * GB), GB, held=GB), "memory that is there for it already is not needed again"


def test_the_disk_must_hold_it(tmp_path):
    room.check_disk(1000, tmp_path / "not" / "there" / "yet")
    with pytest.raises(InvalidRequest, match="of the disk are free"):
        room.check_disk(1 << 60, tmp_path / "not" / "there" / "yet")
