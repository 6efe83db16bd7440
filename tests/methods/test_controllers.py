"""Roosta et al. (2021): some layers travel, existing or added ones; everything else stays home."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from hansa.config.file import parse
from hansa.config.method import build_method
from hansa.core.errors import ConfigError
from hansa.core.model_parts import parts, sides
from hansa.core.tensors import Layout
from hansa.methods.controllers import SharedLayers
from hansa.methods.fedavg import fedavg
from hansa.models.grow import add_layers
from hansa.runs.ledger import Ledger
from hansa.runs.run import run
from tests.conftest import Build, weights
from tests.tasks.test_tasks import DECODERS, ENCODERS

BOTH = {"encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
WIDTH = {"d_model": 32, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48}
PAIRS = {
    "bart": lambda v: transformers.BartConfig(vocab_size=v, **BOTH, **WIDTH),
    "marian": lambda v: transformers.MarianConfig(vocab_size=v, pad_token_id=0, **BOTH, **WIDTH),
    "t5": lambda v: transformers.T5Config(vocab_size=v, d_model=32, d_ff=48, num_layers=2, num_heads=2, d_kv=16),
}
FAMILIES = {name: ("AutoModelForMaskedLM", c) for name, c in ENCODERS.items() if name != "albert"}
FAMILIES |= {name: ("AutoModelForCausalLM", c) for name, c in DECODERS.items()}
FAMILIES |= {name: ("AutoModelForSeq2SeqLM", c) for name, c in PAIRS.items()}
EXACT = {"t5", "llama", "gpt2", "gpt_neox", "modernbert"}  # they normalise before their branches
IDS = torch.arange(5, 25).view(2, 10)


def made(name: str) -> Any:
    torch.manual_seed(0)
    auto, config = FAMILIES[name]
    return getattr(transformers, auto).from_config(config(300)).eval()  # type: ignore[no-untyped-call]


def outputs(model: Any) -> Any:
    extra = {"decoder_input_ids": IDS} if model.config.is_encoder_decoder else {}
    with torch.no_grad():
        return model(input_ids=IDS, attention_mask=torch.ones_like(IDS), **extra).logits


@pytest.mark.parametrize("name", FAMILIES)
def test_a_grown_model_computes_nearly_the_same_and_is_a_plain_folder(name: str, tmp_path: Path) -> None:
    model = made(name)
    places = (2, 3) if name == "modernbert" else (0, 2)  # its first layer is of another make
    larger = add_layers(model, places).eval()
    before, after = outputs(model), outputs(larger)
    difference = float((after - before).norm() / before.norm())
    assert difference < (1e-5 if name in EXACT else 0.1)
    blocks = {p.rsplit(".", 1)[1] for p in parts(larger).values() if "block." in p}
    assert blocks == {"0", "1", "2", "3"}
    larger.save_pretrained(tmp_path / "model")
    again = getattr(transformers, FAMILIES[name][0]).from_pretrained(tmp_path / "model").eval()
    assert torch.equal(outputs(again), after)


def test_added_layers_learn() -> None:
    """The control: were all of a branch zero, nothing would ever reach it."""
    larger = add_layers(made("bart"), (1,)).train()
    larger(input_ids=IDS, labels=IDS).loss.backward()
    gradients = {n: p.grad for n, p in larger.named_parameters() if ".layers.1." in n and "out_proj.weight" in n}
    assert gradients
    assert all(g.abs().sum() > 0 for g in gradients.values())


def test_layers_of_each_side_are_the_scope() -> None:
    model = made("bart")
    layout = Layout(tuple(n for n, _ in model.named_parameters()), tuple(tuple(p.shape) for p in model.parameters()))
    shared = SharedLayers((1,)).shared(layout, parts(model))
    assert set(shared) == {n for n in layout.names if ".layers.1." in n}, "the oracle: by this family's own names"
    everything = SharedLayers((0, 1)).shared(layout, parts(model))
    assert set(everything) == {n for n in layout.names if ".layers." in n}
    with pytest.raises(ConfigError, match="names layer 7, but the trained layers of the model are 0 to 1"):
        SharedLayers((1, 7)).shared(layout, parts(model))
    assert set(sides(model).values()) == {"encoder", "decoder"}
    assert all((s == "encoder") == n.startswith(("model.encoder.", "model.shared")) for n, s in sides(model).items())


def test_only_controllers_travel_and_the_rest_is_each_silos_own(federation: Build, tmp_path: Path) -> None:
    settings = federation(
        tokenizer={"kind": "bytes"}, rounds=2, model={"preset": "tiny", "added": [1]}, method="controllers"
    )
    outcome = run(settings, tmp_path / "run", workers=0)
    ledger = Ledger(outcome.folder)
    [(sent, received)] = ledger.select("select max(sent), max(received) from traffic")
    parameters = ledger.facts()["parameters"]
    ledger.close()
    assert max(sent, received) < 0.5 * 4 * parameters
    start, north, south = (weights(outcome.folder / f) for f in ("start", "silos/north/model", "silos/south/model"))
    travelled = [n for n in start if torch.equal(north[n], south[n]) and not torch.equal(north[n], start[n])]
    assert travelled
    assert all(".layer.1." in n for n in travelled)
    model = transformers.AutoModelForMaskedLM.from_pretrained(outcome.folder / "silos/north/model")
    assert model.config.num_hidden_layers == 3


def test_mistakes_are_answered_in_a_sentence(federation: Build, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="shares only some layers, and none is named"):
        build_method(parse({"silos": {"a": "x"}, "method": "controllers"}))
    with pytest.raises(ConfigError, match=r"added is \[1, 1\]"):
        parse({"silos": {"a": "x"}, "model": {"preset": "tiny", "added": [1, 1]}})
    with pytest.raises(ConfigError, match="names position 9"):
        add_layers(made("bart"), (9,))
    with pytest.raises(ConfigError, match=r"cannot be added|is not known"):
        add_layers(transformers.AlbertForMaskedLM(ENCODERS["albert"](300)), (1,))
    nowhere = federation(tokenizer={"kind": "bytes"}, method={"name": "controllers", "layers": [5]})
    with pytest.raises(ConfigError, match="names layer 5"):
        run(nowhere, tmp_path / "run", workers=0)
    assert replace(fedavg(), scope=SharedLayers((0,))).scope == SharedLayers((0,))
