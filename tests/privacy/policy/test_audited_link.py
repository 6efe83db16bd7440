"""A coordinator's audit log: every question and answer, once, and nothing changes by it."""

from pathlib import Path

from hansa.core.messages import DescribeData, Failure, Reply, Scores
from hansa.links.local import LocalLink
from hansa.privacy.policy.audit_log import AuditLog, entries, verify
from hansa.privacy.policy.audited_link import AuditedLink, AuditedNode
from hansa.privacy.policy.releases import digest


def test_what_a_region_tells_its_parent_is_written_down(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl", "west")
    reply = Scores({"a": {"n": 1.0}})
    assert AuditedNode(lambda request: reply, log, "coordinator")(DescribeData()) is reply
    assert isinstance(AuditedNode(lambda request: Failure("no"), log, "coordinator")(DescribeData()), Failure)
    noted = list(entries(log.file))
    assert [e["event"] for e in noted] == ["request", "release", "request", "failed"]
    assert noted[1]["digest"] == digest(reply)


def test_questions_and_answers_are_written_down(tmp_path: Path) -> None:
    replies: dict[str, Reply] = {"north": Scores({"a": {"n": 1.0}}), "south": Failure("it is away")}
    link = LocalLink(lambda name: lambda request: replies[name])
    log = AuditLog(tmp_path / "audit.jsonl", "coordinator")
    asks = dict.fromkeys(replies, DescribeData())
    plain, seen = list(link.ask(asks, None)), list(AuditedLink(link, log).ask(asks, None))
    assert plain == seen
    assert verify(log.file).sound
    noted = list(entries(log.file))
    assert [(e["event"], e["to"]) for e in noted] == [
        ("sent", "north"), ("sent", "south"), ("received", "north"), ("failed", "south"),
    ]  # fmt: skip
    assert noted[2]["digest"] == digest(replies["north"])
    assert noted[3]["reason"] == "it is away"
