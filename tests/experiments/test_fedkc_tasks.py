"""The paper's three tasks at their smallest: every arm runs, is kept and is judged; the layouts are the paper's."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hansa.core.errors import UserError
from hansa.experiments.reproduce import Options, Reproduction, fedkc_tasks, multilingual
from hansa.experiments.reproduce.corpora import Row
from hansa.experiments.reproduce.fedkc_runs import ALL, CENTRAL, LAST, WITHOUT
from hansa.experiments.reproduce.fedkc_tasks import FEDAVG, SIZES, SKEWED, VARIED, federation
from hansa.experiments.reproduce.study import BASE
from hansa.experiments.reproduce.verdict import OPEN


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> tuple[Options, Reproduction]:
    options = Options("smoke", None, tmp_path_factory.mktemp("tasks"), lambda line: None)
    return options, fedkc_tasks.reproduce(options)


def test_every_task_has_a_table_and_a_line_for_each_claim(smoke: tuple[Options, Reproduction]) -> None:
    titles = [table.title for table in smoke[1].tables]
    for task in ("PI", SKEWED, "QA", "NC"):
        assert f"Tables 3 and 4, {task}: accuracy" in titles
        rates = [title for title in titles if title.startswith(f"{task}: learning rates")]
        assert len(rates) == 1
    scores = {
        table.title.split(", ", 1)[1].split(":")[0]: table for table in smoke[1].tables if "Tables 3" in table.title
    }
    assert [row[0] for row in scores["PI"].rows][:3] == [BASE, CENTRAL, FEDAVG]
    assert {LAST, ALL, *WITHOUT.values()} <= {row[0] for row in scores["QA"].rows}
    assert not set(VARIED) & {row[0] for row in scores["NC"].rows}
    by_task = [claim.name.partition(":")[0] for claim in smoke[1].claims]
    assert {task: by_task.count(task) for task in by_task} == {"PI": 6, SKEWED: 2, "QA": 6, "NC": 10}
    assert all(claim.verdict.state == OPEN for claim in smoke[1].claims), "one seed shows nothing"
    assert json.loads(json.dumps(smoke[1].as_dict()))["paper"] == "fedkc-tasks"


def test_finished_cells_give_the_same_tables_without_any_run(smoke: tuple[Options, Reproduction]) -> None:
    options, found = smoke
    again = fedkc_tasks.reproduce(replace(options, finished=True))
    assert again.tables == found.tables
    nothing = fedkc_tasks.reproduce(replace(options, finished=True, cells=options.out / "none"))
    assert {claim.verdict.why for claim in nothing.claims} == {"its runs are not finished"}


def test_arms_differ_only_in_what_their_name_says(tmp_path: Path) -> None:
    corpus, size = multilingual.generate(tmp_path)["NC"], SIZES["small"]
    model = {"model": "mini", "tokenizer": {"size": 600, "min_count": 2}}

    def settings(arm: str) -> dict[str, object]:
        return federation(arm, corpus, size, model, 4, 2e-4, 0).model_dump()

    usual = settings(ALL)
    for arm, changed in {**{arm: {"train", "participation"} for arm in VARIED}, LAST: {"method"}}.items():
        assert {key for key, value in settings(arm).items() if value != usual[key]} <= changed, arm
    assert settings(f"{ALL}, 4 epochs") != usual
    chosen = federation(ALL, corpus, size, model, 4, 2e-4, 0, selecting=True)
    assert all(".valid." in (node.sources[0].test or "") for node in chosen.silos.values()), "rates see no test data"
    measured = federation(ALL, corpus, size, model, 4, 2e-4, 0)
    assert all(".test." in (node.sources[0].test or "") for node in measured.silos.values())
    central = federation(CENTRAL, corpus, size, model, 4, 2e-4, 0)
    assert (central.kind, central.rounds) == ("central", 2)


def test_pairs_of_the_benchmark_are_in_one_split_in_all_languages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = (5.0, 4.0, 3.0, 2.0, 0.0)

    def rows(file: Path) -> list[Row]:
        part = file.name.partition(".")[0]
        return [
            {"id": i, "language": code, "text1": f"{part} {i} {code}", "text2": "b", "score": scores[i % 5]}
            for code in (*multilingual.STSB, "ru")
            for i in range(60)
        ]

    monkeypatch.setattr(multilingual, "lines", rows)
    corpus = multilingual.similar_sentences(tmp_path, tmp_path / "out", 2, 5)
    assert (corpus.clients, corpus.active, len(corpus.silos)) == (22, 2, 8)
    read = {
        (code, side): [json.loads(line) for line in Path(source[side]).read_text(encoding="utf-8").splitlines()]
        for code, source in corpus.silos.items()
        for side in ("train", "valid", "test")
    }
    for side in ("valid", "test"):
        assert len({tuple(row["id"] for row in read[code, side]) for code in corpus.silos}) == 1, "the same pairs"
        assert all(row["text1"].startswith("dev") for row in read["en", side])
    assert not {row["id"] for row in read["en", "valid"]} & {row["id"] for row in read["en", "test"]}
    assert {len(read[code, "train"]) for code in ("de", "pl")} == {2}
    assert len(read["en", "train"]) == 30, "fifteen clients with two rows"
    assert {row["label"] for row in read["en", "train"]} == {"0", "1"}
    assert not any(row["id"] % 5 == 2 for some in read.values() for row in some), "what lies between is left out"


def test_real_text_is_needed_beyond_smoke(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="give its folder with --data"):
        fedkc_tasks.reproduce(Options("small", None, tmp_path, lambda line: None))
