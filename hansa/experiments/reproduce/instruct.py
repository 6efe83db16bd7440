"""Instruction tuning of a real chat model across nine silos: LoRA adapters, federated, central and alone.

MedQuAD's nine web sites are silos; the model is SmolLM2-135M-Instruct. Every finished run is a cell (`cells.py`).
Learning rates of central training, of plain averaging and of silos alone are selected on one half of the dev split; the
other federated arms take the rate of plain averaging.
"""

from collections.abc import Mapping, Sequence
from time import perf_counter

from hansa.experiments.reproduce import Claim, Options, Reproduction, Table, instruct_runs, pretrained
from hansa.experiments.reproduce.cells import Cell
from hansa.experiments.reproduce.instruct_runs import FEDERATED, SIZES, SMALLEST, Size, federation
from hansa.experiments.reproduce.study import BASE, SEEDS, Study, figure, written
from hansa.experiments.reproduce.verdict import Evidence

PAPER = "instruct"
UNUSED = ("encoder", "tune")  # options of the command that this paper does not use
CENTRAL, AVERAGE, ALONE = "central", "average", "alone"
CLOSE = 0.02  # the federated loss may be this share above central training's


def reproduce(options: Options) -> Reproduction:
    """Run the experiments, or resume them; return the tables and claims."""
    options.require_data()
    options.reject(PAPER, *UNUSED)
    began, size, folder = perf_counter(), options.size_of(SIZES, PAPER), options.out / "data"
    model = pretrained.model_of(options, pretrained.SMOLLM2)
    options.say("writing the silos' data")
    silos = instruct_runs.lay_out(options.data, folder, model, size) if options.data else instruct_runs.generate(folder)
    study = Study(
        options,
        options.cells_of(PAPER),
        lambda arm, rate, seed: federation(arm, silos, model, size, rate, seed),
        size.rates,
        {arm: AVERAGE for arm in FEDERATED if arm != AVERAGE},
        size.seeds,
    )
    if not options.finished:
        study.run()
    found = {arm: study.of(arm) for arm in study.arms}
    tables = [_scores(found, study, size), _silos(found), study.rate_table()]
    cells = [cell for some in found.values() for cell in some]
    judged = claims(found, study, size.published)
    report = written(options, tables, judged)
    return Reproduction(PAPER, options.scale, tables, judged, report, perf_counter() - began, cells=cells)


# ── tables and claims ─────────────────────────────────────────────────────────────────────────────────────────────


def _of(cells: Sequence[Cell], metric: str, groups: Sequence[str] = ()) -> list[float]:
    return [cell.mean(metric, [g for g in groups if g in cell.scores] or None) for cell in cells]


def _scores(found: Mapping[str, Sequence[Cell]], study: Study, size: Size) -> Table:
    rows = []
    for arm, cells in found.items():
        rows.append(
            [
                arm,
                figure(_of(cells, "loss")),
                figure(_of(cells, "loss", SMALLEST)),
                figure(_of(cells, "rouge_l")),
                "–" if arm == BASE or not cells else f"{study.rate(arm):g}",
                f"{cells[0].samples:,}" if cells else "–",
                f"{(cells[0].bytes_up + cells[0].bytes_down) / 1e6:.1f}" if cells else "–",
            ]
        )
    note = (
        f"{size.steps} steps of {size.batch} × {size.length} tokens in every arm, over all silos together; "
        f"{size.rounds} rounds; loss on up to {size.tested} samples of each silo, "
        f"ROUGE-L of {size.answers} answers of each group; half of the dev split, the other half "
        f"selected the rates. {SEEDS}"
    )
    columns = ["", "loss", "loss, three smallest", "ROUGE-L", "rate", "samples", "MB in all"]
    return Table("Nine silos: mean over groups of silos", columns, rows, note)


def _silos(found: Mapping[str, Sequence[Cell]]) -> Table:
    arms = [arm for arm in (BASE, ALONE, CENTRAL, AVERAGE) if found[arm]]
    groups = list(dict.fromkeys(group for arm in arms for group in found[arm][0].scores))
    rows = [[group, *(figure(_of(found[arm], "loss", [group])) for arm in arms)] for group in groups]
    return Table("Loss by silo", ["", *arms], rows, "Silos with few dev rows are pooled for evaluation.")


def claims(found: Mapping[str, Sequence[Cell]], study: Study, published: bool) -> list[Claim]:
    """Federated against central training and against silos alone."""
    wanted = (
        ("federated loss is within 2% of central training's, on the mean over silos", CENTRAL, (), CLOSE),
        ("federated loss is below that of the silos' own adapters, on the mean over silos", ALONE, (), 0.0),
        ("federated loss is below that of the silos' own adapters for the three smallest", ALONE, SMALLEST, 0.0),
    )
    base, judged = found[BASE], []
    for name, rival, groups, margin in wanted:
        ours, theirs = _of(found[AVERAGE], "loss", groups), _of(found[rival], "loss", groups)
        evidence = Evidence(
            better="low",
            ours=ours,
            rival=theirs,
            start=_of(base, "loss", groups)[0] if base else None,
            grid=study.grid(rival),
            published=published,
            margin=margin,
        )
        judged.append(Claim.of(name, evidence, f"{figure(ours)} against {figure(theirs)}", "none: a claim of ours"))
    return judged
