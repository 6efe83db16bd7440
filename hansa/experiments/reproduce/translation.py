"""The Translation paper (Passban et al., 2022): Tables 2 to 7, Figures 1 and 3, on real German–English pairs.

All runs start from one generic model, trained on the largest domain with a vocabulary that all silos built together.
Then every client takes the same number of steps in each run, with several seeds: federations with whole updates, with
parts of them (dynamic pulling, controllers) and with compressed updates; data combination and chained fine-tuning with
as many steps as one client takes, and with as many as all clients together; and a control, in which silos exchange
nothing after the first round.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from time import perf_counter
from typing import Any

from hansa.config.federation import Federation
from hansa.config.file import parse
from hansa.experiments.reproduce import Options, Reproduction, Say, Table, domains, translation_tables
from hansa.experiments.reproduce.jobs import Fact, Jobs, matrix, matrix_name
from hansa.experiments.reproduce.study import report_of
from hansa.experiments.reproduce.translation_tables import SERVER, Found, Scored
from hansa.runs.inference import SHARED, on_silos, open_run
from hansa.runs.results import RunResults, read_scores

UNUSED = ("encoder",)  # options of the command that this paper does not use
PULLED = {"by": "parameters", "norm": "relative"}  # the default settings of dynamic pulling here
CHAIN = ("WMT", "UB", "PHP", "TED", "OS")
GENERIC, SINGLE, FINE_TUNED = "WMT", "single domain", "fine-tuned"
SMALLEST = "UB"
RATES = (0.5, 1.0, 2.0)  # factors on the default learning rate that --tune tries


@dataclass(frozen=True)
class Size:
    """The size of the experiments."""

    generic_steps: int
    generic_lr: float
    steps: int  # of every client, over all rounds
    lr: dict[str, float]  # by kind of run; at small scale as --tune selected them on validation data
    batch: int
    length: int
    vocabulary: int
    seeds: int
    coded: int = 1  # seeds of the full exchange and of the best compression, whose BLEU differ less than seeds do
    rounds: tuple[int, int, int] = (5, 10, 50)
    single_steps: int = 0
    turns: int = 30  # rounds of the generic training; its schedule advances by rounds
    warmup: int = 3  # of these rounds
    preset: str = "tiny"
    beams: int = 1
    others: float = 0.25  # the share of the test data for clients' own models on other domains
    brief: bool = False  # run fewer variants
    everything: bool = False  # use all pairs

    def rate(self, kind: str) -> float:
        """The learning rate of a kind of run."""
        return self.lr.get(kind, self.lr["federated"])


SIZES = {
    "smoke": Size(20, 2e-3, 6, {"federated": 1e-3}, 4, 24, 900, 1, 1, (2, 3, 6), 4, 2, 1, brief=True),
    "small": Size(
        2000, 2e-3, 50, {"federated": 2e-3, "central": 5e-4, "chained": 2.5e-4}, 16, 40, 4000, 3, 6,
        single_steps=300, turns=20,
    ),
    "medium": Size(
        20_000, 2e-3, 250, {"federated": 1e-3, "central": 5e-4, "chained": 2.5e-4}, 32, 48, 8000, 3, 6,
        single_steps=1500, turns=40, preset="small",
    ),
    "full": Size(
        100_000, 7e-4, 50_000, {"federated": 1e-4}, 256, 256, 30_000, 3, 3, single_steps=100_000, turns=100, warmup=8,
        preset="base", beams=4, everything=True,
    ),
}  # fmt: skip


def pulling(choose: str, **settings: Any) -> dict[str, Any]:
    """The ``upload`` section of dynamic pulling."""
    return {"upload": {"name": choose} | PULLED | settings}


TAKEN_OVER = ", synchronised"  # ours: clients take the server's values of the tensors that they did not send
# Variants beside the full exchange; in those of TABLE_7 the server also sends only a part of the model.
PULLING = {"DP_l": pulling("calm"), "DP_g": pulling("active"), "random": pulling("random")}
SETTINGS = {
    "DP_l, literal": pulling("calm", by="tensors", norm="raw"),
    "DP_g, literal": pulling("active", by="tensors", norm="raw"),
    "DP_l, no embeddings": pulling("calm", embeddings=False),
    f"DP_l ⅓{TAKEN_OVER}": pulling("calm", keep=1 / 3, local=False),
    f"DP_l ¾ + bf16{TAKEN_OVER}": {"upload": [pulling("calm", keep=0.75, local=False)["upload"], "bf16"]},
    f"DP_l 90% + bf16{TAKEN_OVER}": {"upload": [pulling("calm", keep=0.9, local=False)["upload"], "bf16"]},
}
PULLED_BEST = f"DP_l 90% + bf16{TAKEN_OVER}"  # the one of these that is run with all seeds
THIRD = {"keep": 1 / 3, "both": True}
TABLE_7 = {"DP_l ⅓": pulling("calm", **THIRD), "DP_g ⅓": pulling("active", **THIRD)}
# The first layer of each side of two; and one added layer per side, the only one that is exchanged.
CONTROLLERS: dict[str, dict[str, Any]] = {
    "controllers": {"method": {"name": "controllers", "layers": [0]}},
    "added layers": {"method": "controllers", "added": [0]},
}
CODES: dict[str, dict[str, Any]] = {
    "int8": {"upload": "int8"},
    "rows ¼ + int8": {"upload": [{"name": "rows", "keep": 0.25}, "int8"]},
    "top-k 30% + int8": {"upload": [{"name": "top-k", "keep": 0.3}, "int8"]},
    "top-k 10% + int8": {"upload": [{"name": "top-k", "keep": 0.1}, "int8"]},
    "top-k ⅔ + int4": {"upload": [{"name": "top-k", "keep": 2 / 3}, "int4"]},
}
CODED = "top-k ⅔ + int4"


def reproduce(options: Options) -> Reproduction:
    """Run the experiments, or resume them; return the tables and claims."""
    options.require_data()
    options.reject("translation", *UNUSED)
    began, size, out = perf_counter(), options.size_of(SIZES, "translation"), options.out
    options.say("writing the silos' data")
    folder = out / "data"
    sources = domains.lay_out(options.data, folder, size.everything) if options.data else domains.generate(folder)
    with Jobs.of(options, "translation") as jobs:
        study = Study(jobs, sources, size, options.say)
        study.begin(options.model)
        ready = perf_counter()
        tuning = [study.tune()] if options.tune else []
        choosing = perf_counter() - ready if options.tune else 0.0
        study.start()
        found = study.found()
    tables, claims = [*tuning, *translation_tables.tables(found)], translation_tables.claims(found)
    shown = [(name, jobs.folder(f"{name} 0")) for name in study.reported]
    report = report_of(options, shown, "Translation: one engine, five domains, five silos", claims, tables)
    facts = {"rates": study.size.lr, "signatures": list(found.signatures)}
    took = perf_counter() - began
    return Reproduction("translation", options.scale, tables, claims, report, took, facts, choosing, cells=jobs.kept)


@dataclass
class Study:
    """All runs of the experiment, and their results."""

    jobs: Jobs
    sources: domains.Sources
    size: Size
    say: Say
    vocabulary: str = ""  # the folder of the tokenizer and the model configuration
    generic: str = ""  # the folder of the generic model
    variants: dict[str, tuple[int, ...]] = field(default_factory=dict)  # name → seeds

    # ── the runs ──────────────────────────────────────────────────────────────────────────────────────────────────

    def begin(self, model: str | None) -> None:
        """Provide the generic model: a given one, or one trained on the largest domain.

        Single-domain models need only its vocabulary and are trained at the same time.
        """
        size = self.size
        self.generic = self.vocabulary = str(Path(model).resolve()) if model else ""
        if not model:
            self._start("vocabulary", federation(self.sources, size, "", 0, kind="base"))
            self.vocabulary = self.jobs.model("vocabulary")
            self._start("generic", self._generic())
        if not size.brief:
            steps = size.single_steps
            single = federation(self.sources, size, self.vocabulary, 0, kind="per-silo", fresh=True, steps=steps)
            self._start(SINGLE, single, matrix(1.0))
        if not model:
            self.generic = self.jobs.model("generic")

    def start(self) -> None:
        """Start all variants."""
        size, every, coded = self.size, tuple(range(self.size.seeds)), tuple(range(self.size.coded))
        few, more, most = size.rounds
        self._vary(SERVER, coded, curve=True)
        self._vary("after 1 round", every, rounds=1, steps=size.steps // few)
        self._vary("combination", every, kind="central", share=1 / len(self.sources))
        self._vary("chained", every, kind="chained", share=1 / len(self.sources))
        self._vary("combination, all work", every, kind="central")
        self._vary("chained, all work", every[:1], kind="chained")
        for name, changes in PULLING.items():
            self._vary(name, every, **changes)
        self._vary(f"{more} rounds", every[:1], rounds=more, curve=True)
        self._vary(f"{most} rounds", every, rounds=most, curve=True)
        codes = {CODED: CODES[CODED]} if size.brief else CODES
        for name, changes in codes.items():
            self._vary(name, coded if name == CODED else every[:1], **changes)
        for name, changes in {} if size.brief else (SETTINGS | TABLE_7 | CONTROLLERS).items():
            self._vary(name, every if name == PULLED_BEST else every[:1], **changes)
        self._vary(FINE_TUNED, every[:1], kind="per-silo", model=SERVER)
        rest = size.steps - size.steps // few
        self._vary("no exchange", every, kind="per-silo", model="after 1 round", rounds=few - 1, steps=rest)

    def _vary(self, name: str, seeds: tuple[int, ...], model: str = "", **changes: Any) -> None:
        """Start one run for every seed, from the generic model or from the final model of another run."""
        self.variants[name] = seeds
        for seed in seeds:
            start = self.jobs.model(f"{model} {seed}") if model else self.generic
            settings = federation(self.sources, self.size, start, seed, **changes)
            self._start(f"{name} {seed}", settings, self._facts(name, seed))

    def _facts(self, name: str, seed: int) -> dict[str, Fact]:
        """What the tables need of a run beside its scores."""
        facts = matrix(self._share(name)) | {"curve": curve_of}
        if seed == 0 and name == SERVER:
            facts[self._generic_fact] = partial(generic_scores, share=self.size.others)
        if seed == 0 and name.startswith("DP_l"):
            facts["movement"] = movement_of
        return facts

    @property
    def _generic_fact(self) -> str:
        return f"generic model, others {self.size.others:g}"

    def _share(self, name: str) -> float:
        """The share of the test data on which every model of a run is scored; generating translations is slow."""
        return 1.0 if name == FINE_TUNED else self.size.others if translation_tables.pulled(name) else 0.0

    def _start(self, name: str, settings: Federation, facts: Mapping[str, Fact] | None = None) -> None:
        self.jobs.start(name, settings, facts=facts)

    def _generic(self) -> Federation:
        """The settings of the generic model: the largest domain only, with a schedule over rounds."""
        size, turns = self.size, self.size.turns
        steps = size.generic_steps // turns
        made = federation(self.sources, size, self.vocabulary, 0, kind="chained", fresh=True, rounds=1, steps=steps)
        schedule = made.baseline.schedule.model_copy(update={"kind": "inverse-sqrt", "warmup": size.warmup})
        baseline = made.baseline.model_copy(update={"schedule": schedule})
        return made.model_copy(update={"order": (GENERIC,) * turns, "baseline": baseline})

    def tune(self) -> Table:
        """Select the learning rate of every kind of run on validation data, with one seed; return a table."""
        kinds: dict[str, dict[str, Any]] = {
            "federated": {},
            "central": {"kind": "central", "share": 1 / len(self.sources)},
            "chained": {"kind": "chained", "share": 1 / len(self.sources)},
        }
        rates = {kind: [self.size.rate(kind) * factor for factor in RATES] for kind in kinds}
        for kind, changes in kinds.items():
            for rate in rates[kind]:
                size = replace(self.size, lr={"federated": rate})
                self._start(f"tune {kind} {rate:g}", federation(self.sources, size, self.generic, 0, **changes))
        chosen, rows = {}, []
        for kind, some in rates.items():
            losses = {rate: self.jobs.cell(f"tune {kind} {rate:g}").valid["loss"] for rate in some}
            chosen[kind] = min(losses, key=lambda rate: losses[rate])
            tried = ", ".join(f"{rate:g}: {loss:.4f}" for rate, loss in losses.items())
            rows.append([kind, tried, f"{chosen[kind]:g}"])
        self.size = replace(self.size, lr=chosen)
        return Table("Learning rates, by validation loss with one seed", ["", "tried", "chosen"], rows)

    # ── results ───────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def reported(self) -> list[str]:
        """The runs that the report compares."""
        shown = [SERVER, "combination", "chained", *PULLING, *TABLE_7, *CODES]
        return [name for name in shown if name in self.variants]

    def found(self) -> Found:
        """The results of all runs; waits for them."""
        scored = {name: [self._scored(name, seed) for seed in seeds] for name, seeds in self.variants.items()}
        single = {} if self.size.brief else dict(self.jobs.cell(SINGLE).facts[matrix_name(1.0)])
        generic = self._fact(SERVER, self._generic_fact)
        start = generic["all"]
        return Found(
            rounds=self.size.rounds,
            start=Scored(start, start, generic["part"], 0),
            scored=scored,
            single=single | ({GENERIC: start} if single else {}),  # the largest domain's model is the generic one
            fine_tuned=self._fact(FINE_TUNED, matrix_name(1.0)),
            curves={rounds: self._curve(rounds) for rounds in self.size.rounds},
            movement=self._movement(),
            signatures=tuple(generic["signatures"]),
        )

    def _scored(self, name: str, seed: int) -> Scored:
        cell = self.jobs.cell(f"{name} {seed}")
        scores, own, sent, valid = cell.scores, cell.own or cell.scores, cell.bytes_up, cell.valid.get("loss")
        if not translation_tables.pulled(name):
            return Scored(scores, own, scores, sent, valid)
        models = cell.facts[matrix_name(self._share(name))]
        if not self.sources.keys() <= models.keys():  # clients have no models of their own
            return Scored(scores, own, models[SHARED], sent, valid)
        others = {d: _mean([models[silo][d] for silo in self.sources if silo != d]) for d in self.sources}
        return Scored(scores if SHARED in models else {}, own, others, sent, valid)

    def _fact(self, name: str, fact: str) -> Any:
        return self.jobs.cell(f"{name} 0").facts[fact]

    def _curve(self, rounds: int) -> list[float]:
        """Figure 3: the validation loss of the smallest domain, evaluation by evaluation."""
        name = SERVER if rounds == self.size.rounds[0] else f"{rounds} rounds"
        return list(self._fact(name, "curve"))

    def _movement(self) -> dict[str, Mapping[str, Sequence[float]]]:
        """Figure 1: how far each tensor of three clients moved between the last two rounds, by side."""
        name = "DP_l, literal" if "DP_l, literal" in self.variants else "DP_l"
        found = self._fact(name, "movement")
        return {client: found[client] for client in list(self.sources)[:3] if client in found}


def federation(
    sources: domains.Sources,
    size: Size,
    path: str,
    seed: int,
    kind: str = "federated",
    rounds: int | None = None,
    steps: int | None = None,
    share: float = 1.0,
    fresh: bool = False,
    curve: bool = False,
    added: Sequence[int] = (),
    **changes: Any,
) -> Federation:
    """The settings of one run.

    ``path``: the model to start from, empty for random weights and a vocabulary that the silos build; ``share``: a
    factor on the steps of every client, for baselines with as many steps in total as one client; ``curve``: evaluate
    as often as the run with fewest rounds does.
    """
    rounds = size.rounds[0] if rounds is None else rounds
    steps = size.steps if steps is None else steps
    adam = {
        "optimizer": "adam",
        "lr": size.rate(kind),
        "betas": [0.9, 0.98],
        "batch": size.batch,
        "keep_optimizer": True,
    }
    if fresh:
        adam["lr"] = size.generic_lr
    given = {"path": path, "fresh": fresh} | ({"added": added} if added else {})
    samples = max(1, round(steps * size.batch * share / rounds))
    settings: dict[str, Any] = {
        "name": kind,
        "kind": kind,
        "seed": seed,
        "task": {"name": "translate", "beams": size.beams},
        "model": given if path else size.preset,
        "tokenizer": {} if path else {"size": size.vocabulary, "min_count": 2},
        "data": {"max_length": size.length, "max_bad_rows": 1.0 if size.brief else 0.2},
        "silos": sources,
        "order": list(CHAIN),
        "rounds": rounds,
        "train": adam | {"samples": {"floor": samples, "replace": False}},
        "baseline": adam,
        "aggregate": {"weights": "uniform"},
        "evaluate": {"every": max(1, rounds // size.rounds[0]) if curve else rounds, "share": 1.0},
        "checkpoint": {"every": 1, "keep": 1},  # silos delete older states: those of optimizers are large
    }
    return parse(settings | changes)


def curve_of(folder: Path) -> list[float]:
    """The validation loss of the smallest domain, evaluation by evaluation."""
    return [score.value for score in read_scores(folder, "loss", "valid") if score.group == SMALLEST]


def movement_of(folder: Path) -> Mapping[str, Mapping[str, Sequence[float]]]:
    """Client → side → how far each tensor moved in the last round."""
    return RunResults.read(folder).movement


def generic_scores(folder: Path, share: float) -> dict[str, Any]:
    """Scores of the model that a run started from on every silo's test data, and on a share; the metrics' signatures.

    They are made with the run's own task, so that they can be compared with its scores.
    """
    runtime = open_run(folder)
    model = runtime.fresh().model
    signatures = runtime.task.signatures  # type: ignore[attr-defined]
    return {"all": on_silos(runtime, model), "part": on_silos(runtime, model, share), "signatures": signatures}


def _mean(several: list[Mapping[str, float]]) -> dict[str, float]:
    return {key: fmean(one[key] for one in several) for key in several[0]}
