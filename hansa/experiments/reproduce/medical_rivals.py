"""What the Medical paper's claims are held against: several seeds, other weights, and central training on public text.

Table 5 of the paper compares central training on public text alone with a federation that adds a private silo, whose
text could never be pooled. Here the Basque silo is the private one.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean

from hansa.experiments.reproduce import Table
from hansa.experiments.reproduce.jobs import Jobs
from hansa.experiments.reproduce.medical_runs import PRIVATE, RULES, Size, by_rule, federation
from hansa.experiments.reproduce.study import figure

PUBLIC = "central-public"
REPEATED = ("federated", "central")
Rivals = Mapping[str, Sequence[Mapping[str, float]]]  # kind of run → for each seed: language → perplexity


def start(jobs: Jobs, silos: dict[str, dict[str, str]], size: Size, base: str, share: float) -> None:
    """Start central training without the private silo, the other rules, and the further seeds of what claims need."""
    private = PRIVATE if PRIVATE in silos else list(silos)[-1]
    public = {name: source for name, source in silos.items() if name != private}
    jobs.start(PUBLIC, federation("central", public, size, base, share))
    for seed in range(1, size.tries):
        for kind in REPEATED:
            settings = federation(kind, silos, size, base, share, personal=False, seed=seed)
            jobs.start(f"{kind} {seed}", settings)
    for rule in RULES:
        for seed in range(size.tries):
            jobs.start(f"{rule} {seed}", by_rule(rule, silos, size, base, seed))


def found(jobs: Jobs, size: Size) -> Rivals:
    """The perplexities of all seeds; waits for the runs."""
    jobs_of = {kind: [kind, *(f"{kind} {seed}" for seed in range(1, size.tries))] for kind in REPEATED}
    jobs_of |= {rule: [f"{rule} {seed}" for seed in range(size.tries)] for rule in RULES}
    return {
        kind: [{code: m["perplexity"] for code, m in jobs.result(name).metrics.items()} for name in names]
        for kind, names in jobs_of.items()
    }


def rules_table(rivals: Rivals) -> Table:
    """Our weights beside the published ones and the rejected ones."""
    languages = list(rivals["federated"][0])
    rows = []
    for kind, seeds in rivals.items():
        name = {"federated": "N^0.35, our rounds", "central": "central training"}.get(kind, kind)
        mean = [fmean(one.values()) for one in seeds]
        rows.append([name, figure(mean, 1), *(figure([one[code] for one in seeds], 1) for code in languages)])
    note = (
        "All on as many samples: with more samples in a round there are fewer rounds. The published rules are for "
        "thousands of rounds of batches of up to 2,048 samples. ¹: one seed."
    )
    return Table("Weights and samples per round: perplexity", ["", "mean", *languages], rows, note)
