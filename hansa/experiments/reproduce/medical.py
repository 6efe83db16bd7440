"""The Medical paper (Manoel et al., 2023): Tables 3 to 7, on real text in nine languages.

Every run starts from one general-domain multilingual snapshot and continues on medical text. The federation, central
training and one model per silo train on as many tokens; personal models and fine-tuning follow.
"""

from time import perf_counter

from hansa.experiments.reproduce import (
    Options,
    Reproduction,
    Table,
    corpora,
    downstream,
    encoder,
    medical_facts,
    medical_rivals,
    tuning,
)
from hansa.experiments.reproduce.jobs import Jobs
from hansa.experiments.reproduce.medical_runs import SIZES, federation, snapshot
from hansa.experiments.reproduce.medical_tables import (
    personal_claim,
    pretraining_claims,
    table_3,
    table_3_silos,
    table_4,
    table_5,
    table_6,
    table_7,
)
from hansa.experiments.reproduce.study import report_of

UNUSED: tuple[str, ...] = ()  # options of the command that this paper does not use
RUNS = {"FL": "federated", "CL": "central", "own silo": "per-silo", "base": "base"}


def reproduce(options: Options) -> Reproduction:
    """Run the experiments, or resume them; return the tables and claims."""
    options.require_data()
    scale, data, out, model, say = options.scale, options.data, options.out, options.model, options.say
    began, size, tuned, choosing = perf_counter(), options.size_of(SIZES, "medical"), list[Table](), 0.0
    grids: tuning.Grids = {}
    say("writing the silos' data")
    silos = corpora.lay_out(data, out / "data", everything=size.published) if data else corpora.generate(out / "data")
    tasks = downstream.tasks(data, out / "data", size.limit)
    with Jobs.of(options, "medical") as jobs:
        if model is None:
            made = snapshot(out / "data", list(silos), size)
            jobs.start("snapshot", made, facts=medical_facts.of_snapshot(silos, size.length))
        shape = model or jobs.start_folder("snapshot")
        # At the same time as the snapshot, which takes one core: they need only its configuration.
        downstream.start(jobs, "none", tasks, size, shape, fresh=True)
        base = model or jobs.model("snapshot")
        if model is None:
            share = float(jobs.cell("snapshot").facts[medical_facts.share_name(silos, size.length)])
        else:
            share = tuning.equal_tokens(silos, base, size.length)
        if options.tune:
            ready = perf_counter()
            size, tuned, grids = tuning.tune(jobs, size, lambda kind, s: federation(kind, silos, s, base, share, False))
            choosing = perf_counter() - ready
        for kind in RUNS.values():
            # The federation takes longest, and its personal models follow: it may use every core.
            workers = None if kind == "federated" else 0
            facts = medical_facts.of_run(kind, silos, out / "data")
            jobs.start(kind, federation(kind, silos, size, base, share), workers, facts)
        medical_rivals.start(jobs, silos, size, base, share)
        table_5_tasks = {name: task for name, task in tasks.items() if name.startswith("E3C")}
        downstream.start(jobs, medical_rivals.PUBLIC, table_5_tasks, size, jobs.model(medical_rivals.PUBLIC))
        for kind in ("central", "federated"):  # the federation takes longest
            downstream.start(jobs, kind, tasks, size, jobs.model(kind))
        if options.encoder is not None:
            encoder.start(jobs, options.encoder, tasks["NCBI-disease"], out / "data")
        outcomes = {column: jobs.result(kind) for column, kind in RUNS.items()}
        cells = {column: jobs.cell(kind) for column, kind in RUNS.items()}
        rivals = medical_rivals.found(jobs, size)
        kinds = ("federated", "central", "none")
        scores = {name: {kind: downstream.score(jobs, kind, name, size) for kind in kinds} for name in tasks}
        for name in table_5_tasks:
            scores[name][medical_rivals.PUBLIC] = downstream.score(jobs, medical_rivals.PUBLIC, name, size)
        skipped = jobs.cell("federated E3C relation").facts[downstream.SKIPPED]
        fine_tuned = encoder.results(jobs) if options.encoder is not None else None
    languages = list(silos)
    counts, personal = cells["FL"].facts[medical_facts.SAMPLES], medical_facts.personal_of(cells["FL"])
    tables = [
        *tuned,
        table_3(outcomes, languages, counts),
        table_3_silos(cells["own silo"].facts[medical_facts.OWN]),
        medical_rivals.rules_table(rivals),
        table_4(scores, fine_tuned, size.tries),
        table_5(scores, skipped, 2 * size.length),
        table_6(personal, languages),
        table_7(cells, languages),
    ]
    claims = [
        *pretraining_claims(outcomes, languages, counts, rivals, grids),
        personal_claim(personal, languages, counts),
    ]
    claims += [*downstream.claims(scores), *(encoder.claims(fine_tuned) if fine_tuned else [])]
    shown = [(column, outcome.folder) for column, outcome in outcomes.items()]
    report = report_of(options, shown, "Medical: one model, nine languages, nine silos", claims, tables)
    took = perf_counter() - began
    return Reproduction(
        "medical", scale, tables, claims, report, took, {"snapshot": model or "ours"}, choosing, cells=jobs.kept
    )
