"""A round over the network, two silos that only echo, against plain gRPC streaming of the same bytes, in one run.

Ours is what deployments use: one HTTPS port, mutual TLS, signed letters through JetStream, every answer on disk at both
ends before it counts. The peer is grpcio over TLS on loopback: two clients fetch the bytes and send them back, nothing
is kept.
"""

import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter

import grpc
from _far import Memory, federation, free_ports, model
from _figures import Figures
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from hansa.core.messages import Train, Update
from hansa.core.tensors import WeightedMean

MB = 1 << 20
PIECE = MB
OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


def same(data: bytes) -> bytes:
    return data


def serve_grpc(port: int, size: int, key: bytes, certificate: bytes, ready) -> None:  # type: ignore[no-untyped-def]
    data = bytes(size)
    pieces = [data[at : at + PIECE] for at in range(0, size, PIECE)]

    def down(request: bytes, context: object):  # type: ignore[no-untyped-def]
        yield from pieces

    def up(stream, context: object) -> bytes:  # type: ignore[no-untyped-def]
        into(stream, bytearray(size))
        return b"done"

    methods = {
        "down": grpc.unary_stream_rpc_method_handler(down, same, same),
        "up": grpc.stream_unary_rpc_method_handler(up, same, same),
    }
    server = grpc.server(ThreadPoolExecutor(4), options=OPTIONS)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("raw", methods),))
    credentials = grpc.ssl_server_credentials([(key, certificate)])
    server.add_secure_port(f"127.0.0.1:{port}", credentials)
    server.start()
    ready.set()
    time.sleep(3600)


def into(stream, buffer: bytearray) -> None:  # type: ignore[no-untyped-def]
    at = 0
    for piece in stream:
        buffer[at : at + len(piece)] = piece
        at += len(piece)


def raw_client(port: int, size: int, certificate: bytes, pipe) -> None:  # type: ignore[no-untyped-def]
    """At every word: fetch everything, send everything back."""
    credentials = grpc.ssl_channel_credentials(certificate)
    channel = grpc.secure_channel(f"localhost:{port}", credentials, options=OPTIONS)
    down = channel.unary_stream("/raw/down", same, same)
    up = channel.stream_unary("/raw/up", same, same)
    buffer = bytearray(size)
    view = memoryview(buffer)
    pipe.send("ready")
    while pipe.recv():
        into(down(b""), buffer)
        up(bytes(view[at : at + PIECE]) for at in range(0, size, PIECE))
        pipe.send("done")


def own_certificate() -> tuple[bytes, bytes]:
    """A key and its certificate for localhost."""
    key, now = generate_private_key(SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + timedelta(days=1))
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
    certificate = builder.sign(key, SHA256()).public_bytes(Encoding.PEM)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), certificate


class Raw:
    """A gRPC server and two clients, each a process."""

    def __init__(self, size: int) -> None:
        context = get_context("spawn")
        [port] = free_ports(1)
        ready = context.Event()
        key, certificate = own_certificate()
        arguments = (port, size, key, certificate, ready)
        self.processes = [context.Process(target=serve_grpc, args=arguments, daemon=True)]
        self.processes[0].start()
        ready.wait()
        self.pipes = []
        for _ in range(2):
            ours, theirs = context.Pipe()
            self.processes.append(
                context.Process(target=raw_client, args=(port, size, certificate, theirs), daemon=True)
            )
            self.processes[-1].start()
            ours.recv()
            self.pipes.append(ours)

    def round(self) -> float:
        began = perf_counter()
        for pipe in self.pipes:
            pipe.send(True)
        for pipe in self.pipes:
            pipe.recv()
        return perf_counter() - began

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()


def measure(size: int, rounds: int, figures: Figures) -> None:
    name = f"{size // MB}MB"
    raw = Raw(size)
    with tempfile.TemporaryDirectory() as folder, federation(Path(folder), 2, 2) as (link, pipes):
        sent = model(size)
        one_round(link, sent, 1)
        raw.round()
        memory = Memory()
        ask_memory(pipes)
        before = [memory.peak(), *ask_memory(pipes)]
        ours, theirs = [], []
        for number in range(2, 2 + rounds):
            theirs.append(raw.round())
            ours.append(one_round(link, sent, number))
        after = [memory.peak(), *ask_memory(pipes)]
        coordinator, *silos = (1 + (a - b) / size for a, b in zip(after, before, strict=True))
    raw.end()
    ratio = min(ours) / min(theirs)
    print(f"{name}: ours {min(ours):.3f} s of {[round(x, 3) for x in ours]}, gRPC {min(theirs):.3f} s")
    if size == MB:
        figures.add("round_1MB", "a round over mutual TLS, two silos, 1 MB", min(ours), "s", "<=", 0.1)
        figures.add(
            "round_1MB_against_grpc", "the same against gRPC over TLS that streams the bytes", ratio, "ratio", "<=", 5.0
        )
        return
    figures.add(f"round_{name}_against_grpc", f"a round of {name} against gRPC over TLS", ratio, "ratio", "<=", 1.5)
    # The model itself was there before, as was the buffer that it arrives in at a silo: one is added.
    figures.add(
        f"coordinator_memory_{name}", f"memory of the coordinator with {name}", coordinator, "models", "<=", 3.0
    )
    figures.add(f"silo_memory_{name}", f"memory of a silo with {name}", max(silos), "models", "<=", 3.0)


def ask_memory(pipes: list) -> list[int]:  # type: ignore[type-arg]
    for pipe in pipes:
        pipe.send("memory")
    return [pipe.recv() for pipe in pipes]


def one_round(link, sent, number: int) -> float:  # type: ignore[no-untyped-def]
    began = perf_counter()
    total = WeightedMean(sent.layout)
    answers = link.ask(dict.fromkeys(("s0", "s1"), Train(number, sent, number - 1)), None)
    seconds = 0.0
    for answer in answers:
        assert isinstance(answer.reply, Update), answer.reply
        summing = perf_counter()
        total.add(answer.reply.gradient, 1.0)
        seconds += perf_counter() - summing  # the sum is not the network's
    return perf_counter() - began - seconds


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    figures = Figures.from_arguments()
    for size in (1, 2) if figures.smoke else (1, 50, 400):
        measure(size * MB, 2 if figures.smoke else 20 if size == 1 else 5 if size < 100 else 3, figures)
    figures.end()
