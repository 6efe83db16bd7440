"""A policy and the entries of an audit log as sentences, for a silo's administrator."""

from collections.abc import Iterator, Mapping
from typing import Any

from hansa.core.errors import printable
from hansa.privacy.policy.rules import Policy, Release, Rule

KINDS = {
    "samples": "how many samples it has, by language, and how many rows could not be used",
    "metrics": "sums of losses and scores",
    "labels": "the names of the labels",
    "knowledge": "what silos share before training, such as centroids",
    "layers": "layers for other nodes, and attention weights",
    "personal": "scores of its personal models",
    "sketches": "keyed MinHash sketches of texts and words",
}
ASKED = {
    "CollectVocabulary": "words with counts, and labels",
    "DescribeData": "sample counts",
    "ShareKnowledge": "knowledge to share before training",
    "Train": "a model update",
    "AdvertiseKeys": "keys for secure aggregation",
    "ShareSecrets": "shares of secrets for secure aggregation",
    "RevealShares": "shares that remove the masks of a sum",
    "Evaluate": "scores on held-out data",
    "Personalise": "a personal model and its scores",
    "TakeSurvey": "statistics of its data",
    "OfferSurveyKey": "a key for a survey",
    "SealSurveyKey": "an encrypted key for a survey",
}
SENT = {
    "VocabularyCounts": "words with counts, and labels",
    "DataCard": "sample counts",
    "Knowledge": "knowledge shared before training",
    "Update": "a model update",
    "AdvertisedKeys": "keys for secure aggregation",
    "SecretShares": "shares of secrets for secure aggregation",
    "RevealedShares": "shares that remove the masks of a sum",
    "Scores": "scores on held-out data",
    "PersonalScores": "scores of its personal models",
    "SurveyReport": "statistics of its data",
    "SurveyKeys": "keys for a survey",
    "SealedSurveyKey": "an encrypted key for a survey",
}


def policy_lines(policy: Policy) -> list[str]:
    """What a policy allows, requires and limits, one sentence each."""
    if policy.flaw:
        return [f"Nothing may leave, because the policy cannot be read: {policy.flaw}"]
    lines = [line for name, rule in policy.rules.items() for line in _rule(name, rule)]
    if not lines:
        lines = ["No rule allows anything: nothing may leave."]
    limits = policy.limits
    patients = f" and {limits.min_update_patients} patients" if limits.min_update_patients else ""
    lines.append(f"An update is made from at least {limits.min_update_samples} samples{patients}.")
    lines.append(f"A sum of scores is made from at least {limits.min_samples} samples.")
    lines.append(
        f"A received model is refused if a part of it lies further than {limits.max_model_step:g} times its norm from "
        f"the last one, or {limits.max_model_drift:g} times from the initial model."
    )
    if policy.budget is None:
        lines.append("There is no privacy budget: no total of ε is kept.")
    else:
        lines.append(
            f"All releases with noise together may cost ε = {policy.budget.epsilon:g} at δ = {policy.budget.delta:g}."
        )
    if policy.approve is None:
        lines.append("An administrator must approve every run.")
    else:
        one = policy.approve
        lines.append(
            f"Without an administrator, {one.runs} run{'s' * (one.runs > 1)} in all may begin: tasks "
            f"{', '.join(one.tasks)}; methods {', '.join(one.methods)}; at most {one.max_rounds} rounds."
        )
    if policy.within is not None:
        lines.append(f"The policy {policy.within.name} must allow each release, too:")
        lines += [f"({policy.within.name}) {line}" for line in policy_lines(policy.within)]
    return lines


def _rule(name: str, rule: Rule) -> Iterator[str]:
    federations = "any federation" if rule.federations == "any" else f"federation {', '.join(rule.federations)}"
    methods = "any method" if rule.methods == "any" else f"method {', '.join(rule.methods)}"
    allowed = "; ".join(_released(rule.release)) or "nothing"
    yield f"Rule '{name}', for {federations} and {methods}: these may leave: {allowed}."
    withheld = [words for kind, words in KINDS.items() if not getattr(rule.release, kind)]
    if withheld:
        yield f"Rule '{name}' withholds: {'; '.join(withheld)}."
    needs = rule.require
    wanted = [f"at least {needs.cohort} silos in a round"] * (needs.cohort > 1)
    if needs.epsilon is not None:
        wanted.append(f"differential privacy with ε ≤ {needs.epsilon:g}")
    wanted += ["secure aggregation"] * needs.secure_aggregation
    wanted += ["losses and scores under secure aggregation"] * needs.secure_metrics
    if wanted:
        yield f"Rule '{name}' requires {', '.join(wanted)}."


def _released(release: Release) -> Iterator[str]:
    if release.tensors:
        parts = "all parts of the model" if release.tensors == "any" else ", ".join(release.tensors)
        yield f"model updates ({parts})"
    if release.words:
        yield f"words that at least {release.words} of its rows have, with counts"
    if release.survey:
        yield f"statistics of the data (hansa survey), each figure of at least {release.survey} rows"
    yield from (words for kind, words in KINDS.items() if getattr(release, kind))


def entry_words(entry: Mapping[str, Any]) -> str:
    """An entry of an audit log as one sentence, without its time."""
    event, message, to = str(entry.get("event", "")), str(entry.get("message", "")), str(entry.get("to", ""))
    asked, sent = ASKED.get(message, message), SENT.get(message, message)
    of_round = f" of round {entry['round']}" if entry.get("round") else ""
    reason = printable(str(entry.get("reason") or ""), 1000)
    match event:
        case "request":
            return f"{to} asked for {asked}{of_round}."
        case "release":
            rules = ", ".join(f"{kind} by rule {rule}" for kind, rule in dict(entry.get("rules") or {}).items())
            withheld = f"; withheld: {', '.join(entry['withheld'])}" if entry.get("withheld") else ""
            return f"The silo sent {sent}{of_round} to {to} ({entry.get('bytes', 0):,} bytes; {rules}{withheld})."
        case "refusal":
            return f"The silo refused {asked}{of_round} to {to}: {reason}."
        case "failed":
            return f"The silo could not give {asked}{of_round}: {reason}."
        case "approved":
            later = reason or "its initial model comes later"
            return f"A run of {to} was opened, approved by {entry.get('by', '')}: {later}."
        case "decision":
            return f"{entry.get('by', '')} {reason}."
    return f"{event}: {reason}" if reason else event
