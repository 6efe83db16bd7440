"""`hansa.Federation`: data, models and methods from memory or files, to YAML and back."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import pyarrow as pa
import pytest
import transformers
import yaml

import hansa
from hansa.api import tables
from tests.api.conftest import SETTINGS, Make, rows


def read_back(table: Any, tmp_path: Path) -> list[dict[str, Any]]:
    tables.write(table, tmp_path / "x.jsonl", "silos.x")
    return [json.loads(line) for line in (tmp_path / "x.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("kind", ["list", "pandas", "arrow", "dataset"])
def test_a_table_of_any_kind_gives_the_same_rows(kind: str, tmp_path: Path) -> None:
    given = rows("east", 2500)  # more than one chunk
    makers: dict[str, Any] = {
        "list": list,
        "pandas": pd.DataFrame,
        "arrow": pa.Table.from_pylist,
        "dataset": datasets.Dataset.from_list,
    }
    made = makers[kind](given)
    assert read_back(made, tmp_path) == given


def test_missing_values_class_labels_and_other_types_become_plain_json(tmp_path: Path) -> None:
    frame = pd.DataFrame({"text": ["a", None], "n": [1.0, float("nan")], "day": [pd.Timestamp("2020-01-02"), pd.NaT]})
    assert read_back(frame, tmp_path) == [
        {"text": "a", "n": 1.0, "day": "2020-01-02 00:00:00"},
        {"text": None, "n": None, "day": None},
    ]
    (tmp_path / "x.jsonl").unlink()
    labels = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])})
    assert read_back(datasets.Dataset.from_list([{"text": "a", "label": 1}], features=labels), tmp_path) == [
        {"text": "a", "label": "yes"}
    ]
    (tmp_path / "x.jsonl").unlink()
    assert read_back(["only", "texts"], tmp_path) == [{"text": "only"}, {"text": "texts"}]


def test_a_federation_goes_to_yaml_and_back(tmp_path: Path) -> None:
    file = tmp_path / "north.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows("north", 20)))
    given = SETTINGS | {"silos": {"north": {"train": file, "language": "en"}}}
    fed = hansa.Federation(**given, method=hansa.methods.fedprox(mu=0.5))
    text = fed.to_yaml(tmp_path / "fed.yaml")
    assert yaml.safe_load(text)["method"] == {"name": "fedprox", "mu": 0.5}
    again = hansa.Federation.from_yaml(tmp_path / "fed.yaml")
    assert again.settings == fed.settings
    assert hansa.Federation.from_yaml(tmp_path / "fed.yaml", ["rounds=7"]).settings.rounds == 7


def test_yaml_refuses_what_lives_in_memory(make: Make) -> None:
    composed = dataclasses.replace(hansa.methods.fedprox(mu=0.5), name="mine")
    with pytest.raises(hansa.ConfigError, match=r"lives in memory \(silos.north, silos.south, method\): give paths"):
        make(method=composed).to_yaml()


def test_settings_can_be_replaced(make: Make) -> None:
    fed = make()
    more = fed.replace(rounds=9, method=hansa.methods.moon())
    assert (more.settings.rounds, more.settings.method.name, fed.settings.rounds) == (9, "moon", 2)
    assert len(more.tables) == 2
    with pytest.raises(hansa.ConfigError, match="'round' is not a setting; did you mean 'rounds'"):
        fed.replace(round=1)


def test_a_check_reads_data_in_memory_and_can_be_shown(make: Make) -> None:
    found = make().check()
    assert {silo.name: silo.samples > 20 for silo in found.preview.silos} == {"north": True, "south": True}
    assert "What leaves the silos" in str(found)
    assert "north" in found._repr_html_()
    assert found.as_dict()["name"] == "small"


@pytest.mark.parametrize(
    ("silos", "said"),
    [
        (
            {"north": pd.DataFrame({"body": ["a"]})},
            r"silos.north: the data has no column 'text' \(columns: body\); name",
        ),
        ({"north": [["a"]]}, r"silos.north: row 1 is a list; give dicts by column name, or texts"),
        ({"north": 7}, r"silos.north is a int; give a Hugging Face dataset, a pandas"),
        ({"north": {"trian": "x.jsonl"}}, "trian"),
    ],
)
def test_wrong_data_is_named_in_one_sentence(make: Make, silos: Any, said: str) -> None:
    with pytest.raises(hansa.UserError, match=said):
        make(silos=silos).check()


def test_columns_are_named_per_silo(make: Make) -> None:
    renamed = [{"body": row["text"], "kind": row["label"]} for row in rows("north", 30)]
    fed = make(silos={"north": {"train": renamed, "text": "body", "label": "kind", "language": "en"}})
    assert fed.check().preview.silos[0].sources.keys() == {"en"}


@pytest.mark.parametrize(
    ("model", "said"),
    [(object(), "model is a object; give a preset"), ((1, 2), r"model is a tuple; give a preset")],
)
def test_a_wrong_model_is_named(make: Make, model: Any, said: str) -> None:
    with pytest.raises(hansa.ConfigError, match=said):
        make(model=model)


def test_a_wrong_method_is_named(make: Make) -> None:
    with pytest.raises(hansa.ConfigError, match="method is a int; give a name"):
        make(method=3)
    with pytest.raises(hansa.ConfigError, match=r"method\.mi is not a setting of 'fedprox'; did you mean 'mu'"):
        hansa.methods.fedprox(mi=0.1)


def test_a_model_in_memory_is_where_the_run_starts(make: Make, tmp_path: Path) -> None:
    """With no rounds the result is the given model, weight for weight."""
    first = hansa.run(make(rounds=1), out=tmp_path / "first", workers=0, progress=False)
    model, tokenizer = first.model, first.tokenizer
    fed = make(model=(model, tokenizer), tokenizer={}, rounds=0)
    again = hansa.run(fed, out=tmp_path / "again", workers=0, progress=False)
    state = again.model.state_dict()
    assert isinstance(again.model, transformers.PreTrainedModel)
    assert all((state[name] == value).all() for name, value in model.state_dict().items())
