"""The stream that stores the newest request to, and the newest reply of, every child in every run, on a disk."""

from hansa.deploy.network.connection import Connection, JetStreamError
from hansa.deploy.network.subjects import Subjects

STREAM_NAME_IN_USE = 10058  # JetStream's error code


def create_stream(connection: Connection, subjects: Subjects, replicas: int = 1) -> None:
    """Create the stream, or give an existing one its settings; raises `JetStreamError` if the broker refuses.

    ``replicas``: how many servers of a NATS cluster store every message.
    """
    wanted = {
        "name": subjects.stream,
        "subjects": [f"{subjects.root}.{kind}" for kind in ("req.*.*", "rep.*.*", "note.*")],
        "storage": "file",
        "num_replicas": replicas,
        "max_msgs_per_subject": 1,
        "max_msg_size": 64 << 10,
        "allow_direct": True,
        "discard": "old",
    }
    try:
        connection.ask(f"STREAM.CREATE.{subjects.stream}", wanted)
    except JetStreamError as error:
        if error.code != STREAM_NAME_IN_USE:
            raise
        connection.ask(f"STREAM.UPDATE.{subjects.stream}", wanted)


def purge_run(connection: Connection, subjects: Subjects) -> None:
    """Delete the stored requests and replies of the subjects' run."""
    connection.ask(f"STREAM.PURGE.{subjects.stream}", {"filter": f"{subjects.root}.*.*.{subjects.run}"})
