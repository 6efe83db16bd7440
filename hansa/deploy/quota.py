"""How much a node takes from others: what is announced is held against its model, its memory and its disk, before the
first byte of it is fetched or any room is made for it."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from hansa.deploy.network.blob_server import Unusable

MODELS, BESIDE = 8, 64 << 20  # a request may bring so many models, and so many bytes beside
SHARE = 0.75  # of what is free
UNLIMITED = 1 << 62


def check_request(announced: int, model: int, held: int = 0) -> None:
    """``model``: bytes of the weights as they are known here; ``held``: of memory that is there for it already."""
    if announced > MODELS * model + BESIDE:
        raise Unusable(f"{announced} bytes are announced, more than {MODELS} models and {BESIDE} bytes beside")
    check_memory(announced - held)


def check_memory(announced: int) -> None:
    if announced > SHARE * (free := free_memory()):
        raise Unusable(f"{announced} bytes are announced, and {free} bytes of memory are free")


def check_disk(announced: int, folder: Path) -> None:
    """``folder``: where it would be written, or the nearest above that is there."""
    there = next(place for place in (folder, *folder.resolve().parents) if place.exists())
    if announced > SHARE * (free := shutil.disk_usage(there).free):
        raise Unusable(f"{announced} bytes are announced, and {free} bytes of the disk are free")


def free_memory(root: Path = Path("/")) -> int:
    """Of the machine, or of the container that this is: whichever has less."""
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
    """What the limits of this process's control group, and of those above it, leave: cgroups of either version."""
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
    """Pages of files count as used, and are given up when somebody needs the room."""
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
