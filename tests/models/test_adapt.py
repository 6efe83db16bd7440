"""Which tensors are trained and sent: all, the head only, LoRA adapters."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from hansa.core.errors import ConfigError
from hansa.core.learner import Learner
from hansa.models.adapt import adapt, merge_adapters
from hansa.models.settings import Lora, Model
from hansa.runs.inference import load
from hansa.runs.ledger import Ledger
from hansa.runs.run import run
from tests.conftest import Build, same, weights

TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
CLASSIFY = {"task": "classify"}


def encoder(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return transformers.AutoModelForSequenceClassification.from_config(transformers.BertConfig(vocab_size=50, **TINY))


def logits(model: Any) -> Any:
    with torch.inference_mode():
        return model.eval()(input_ids=torch.arange(12).view(2, 6)).logits


def test_frozen_trains_the_head_only() -> None:
    names = Learner(adapt(encoder(), Model(preset="tiny", adapt="frozen"), 0)).layout.names
    assert set(names) == {"classifier.weight", "classifier.bias"}


def test_frozen_embeddings_trains_everything_else() -> None:
    model = encoder()
    names = Learner(adapt(model, Model(preset="tiny", adapt="frozen-embeddings"), 0)).layout.names
    assert set(names) == {name for name, _ in model.named_parameters() if ".embeddings." not in name}
    assert "bert.encoder.layer.0.attention.self.query.weight" in names


def test_adapters_do_not_change_the_initial_model_and_only_they_are_sent() -> None:
    model = encoder()
    before = logits(model)
    learner = Learner(adapt(model, Model(preset="tiny", adapt="lora", lora=Lora(rank=2)), 0))
    assert torch.equal(before, logits(model)), "B is zero at the start"
    assert all("lora_" in name or name.startswith("classifier") for name in learner.layout.names)
    full = sum(p.numel() for p in encoder().parameters())
    assert 0 < learner.layout.size < full / 5


def test_adapters_depend_only_on_the_seed() -> None:
    def start(seed: Any) -> Any:
        return Learner(adapt(encoder(), Model(preset="tiny", adapt="lora"), seed)).flat

    assert torch.equal(start(1), start(1))
    assert not torch.equal(start(1), start(2))


def test_with_frozen_a_the_average_of_b_is_the_average_of_the_products() -> None:
    """FFA-LoRA; the control: with A trained it is not."""

    def products(aggregate: Any) -> tuple[Any, Any, set[str]]:
        models, values = [encoder() for _ in range(3)], torch.Generator().manual_seed(1)
        learners = [
            Learner(adapt(m, Model(preset="tiny", adapt="lora", lora=Lora(rank=2, aggregate=aggregate)), 0))
            for m in models
        ]
        for learner in learners[:2]:
            learner.flat.add_(torch.randn(learner.flat.shape, generator=values))
        learners[2].flat.copy_((learners[0].flat + learners[1].flat) / 2)
        layers = [dict(m.named_modules())["bert.encoder.layer.0.output.dense"] for m in models]
        one, two, mean = (layer.get_delta_weight("default").detach() for layer in layers)
        return mean, (one + two) / 2, {name.split(".")[-3] for name in learners[0].layout.names if "lora_" in name}

    mean, exact, sent = products("freeze-a")
    torch.testing.assert_close(mean, exact)
    assert sent == {"lora_B"}
    mean, exact, sent = products("average")
    assert not torch.allclose(mean, exact, atol=0.1)
    assert sent == {"lora_A", "lora_B"}


def test_a_merged_model_has_the_same_outputs() -> None:
    model = adapt(encoder(), Model(preset="tiny", adapt="lora"), 0)
    learner = Learner(model)
    learner.flat.add_(torch.randn(learner.flat.shape, generator=torch.Generator().manual_seed(1)), alpha=0.1)
    plain = merge_adapters(model)
    assert set(dict(plain.named_parameters())) == set(dict(encoder().named_parameters()))
    torch.testing.assert_close(logits(plain), logits(model), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(logits(plain), logits(encoder()), atol=1e-3), "the adapters have an effect"


@pytest.mark.parametrize("kind", ["frozen-embeddings", "frozen", "lora"])
def test_a_run_sends_only_trained_tensors_and_saves_a_plain_model(kind: Any, federation: Build, tmp_path: Path) -> None:
    settings = federation(**CLASSIFY, rounds=2, model={"preset": "tiny", "adapt": kind}, train={"lr": 0.5, "batch": 8})
    whole = federation(**CLASSIFY, rounds=2, model="tiny", train={"lr": 0.5, "batch": 8})
    small, large = (run(s, tmp_path / n, workers=0).folder for s, n in ((settings, "a"), (whole, "b")))

    def sent(folder: Any) -> Any:
        ledger = Ledger(folder)
        try:
            return ledger.select("select max(received) from traffic")[0][0]
        finally:
            ledger.close()

    assert sent(small) < sent(large) / (1.05 if kind == "frozen-embeddings" else 4)
    assert weights(small / "model").keys() == weights(large / "model").keys()
    _, model = load(small)
    _, checkpoint = load(small, checkpoint=2)
    inputs = {"input_ids": torch.arange(5, 11).view(1, 6)}
    with torch.inference_mode():
        ours, theirs = (m.eval()(**inputs).logits for m in (model, merge_adapters(checkpoint)))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    pooled = run(settings, tmp_path / "c", workers=2).folder
    assert same(weights(small / "model"), weights(pooled / "model"))


def test_fresh_uses_the_architecture_and_not_the_weights(federation: Build, tmp_path: Path) -> None:
    first = run(federation(rounds=1), tmp_path / "first", workers=0).folder / "model"
    again = run(
        federation(rounds=0, model={"path": str(first), "fresh": True}, tokenizer={}), tmp_path / "again", workers=0
    )
    a, b = weights(first), weights(again.folder / "model")
    assert {n: t.shape for n, t in a.items()} == {n: t.shape for n, t in b.items()}
    assert not same(a, b)


def test_missing_peft_is_named_with_its_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ConfigError, match=r"pip install 'hansa\[lora\]'"):
        adapt(encoder(), Model(preset="tiny", adapt="lora"), 0)
