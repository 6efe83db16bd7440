"""Quotas for requests: announced sizes are checked against the model, the free memory and the free disk.

The checks come before any byte is fetched and before any buffer is allocated.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from hansa.deploy.network.blob_protocol import InvalidRequest

MAX_MODELS, ALLOWANCE = 8, 64 << 20  # a request may have the size of so many models, and so many bytes more
FRACTION = 0.75  # of the free memory or disk
UNLIMITED = 1 << 62


def check_request(announced: int, model: int, allocated: int = 0) -> None:
    """Raise `InvalidRequest` if a request of ``announced`` bytes is too large.

    ``model``: bytes of the model's weights; ``allocated``: bytes of buffers that exist already for the request.
    """
    if announced > MAX_MODELS * model + ALLOWANCE:
        raise InvalidRequest(
            f"the request announces {announced} bytes, more than {MAX_MODELS} models of {model} bytes and "
            f"{ALLOWANCE} bytes"
        )
    check_memory(announced - allocated)


def check_memory(announced: int) -> None:
    """Raise `InvalidRequest` if ``announced`` bytes do not fit into the free memory."""
    if announced > FRACTION * (free := free_memory()):
        raise InvalidRequest(f"the request announces {announced} bytes, and {free} bytes of memory are free")


def check_model(needed: int) -> None:
    """Raise `InvalidRequest` if a model that needs ``needed`` bytes for training does not fit into the free memory."""
    if needed > FRACTION * (free := free_memory()):
        raise InvalidRequest(
            f"the initial model needs about {needed} bytes of memory for training, and {free} bytes are free"
        )


def check_disk(announced: int, folder: Path) -> None:
    """Raise `InvalidRequest` if ``announced`` bytes do not fit on the disk of ``folder``, which need not exist yet."""
    existing = next(place for place in (folder, *folder.resolve().parents) if place.exists())
    if announced > FRACTION * (free := shutil.disk_usage(existing).free):
        raise InvalidRequest(f"the request announces {announced} bytes, and {free} bytes of the disk are free")


def free_memory(root: Path = Path("/")) -> int:
    """Bytes of memory that are free: of the machine, or of the container if that has less."""
    return min([_machine(root), *_containers(root)])


def _machine(root: Path) -> int:
    for line in _lines(root / "proc/meminfo"):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return UNLIMITED


def _containers(root: Path) -> Iterator[int]:
    """What is left below the limits of this process's control group and of its parents, for cgroups v1 and v2."""
    for line in _lines(root / "proc/self/cgroup"):
        number, controllers, path = line.split(":", 2)
        if number == "0":
            top, limit, used = root / "sys/fs/cgroup", "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            top, limit, used = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        group = top / path.strip("/")
        for place in (group, *group.parents):
            most, now = _number(place / limit), _number(place / used)
            if most is not None and now is not None:
                yield max(0, most - now + _reclaimable(place))
            if place == top:
                break


def _reclaimable(group: Path) -> int:
    """Bytes of cached file pages: they count as used, and are released when memory is needed."""
    stat = dict(line.split(maxsplit=1) for line in _lines(group / "memory.stat"))
    return int(stat.get("inactive_file", stat.get("total_inactive_file", 0)))


def _number(file: Path) -> int | None:
    text = "".join(_lines(file)).strip()
    return int(text) if text.isdigit() else None  # 'max': no limit


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []
