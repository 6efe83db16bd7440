"""Properties of compression: encodings decode, error feedback keeps what is lost, counted bytes are those sent."""

import contextlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hansa.compressors.basic import Bf16, Quantize, Ternary, TopK, TopRows
from hansa.core import wire
from hansa.core.compression import Compressor, CompressorChain, OutgoingUpdate, UploadState
from hansa.core.encoding import BLOCK, EncodedTensor, EncodedUpdate, EncodingError
from hansa.core.messages import Update
from hansa.core.tensors import NOTHING, Layout, Tensors

LAYOUT = Layout(("table", "matrix", "bias"), ((40, 16), (20, 30), (7,)))
CHAINS: dict[str, tuple[Compressor, ...]] = {
    "bf16": (Bf16(),),
    "int8": (Quantize(127),),
    "int4": (Quantize(7),),
    "int2": (Ternary(),),
    "top-k+int2": (TopK(0.5), Ternary()),
    "top-k": (TopK(0.05),),
    "top-k+int8": (TopK(0.3), Quantize(127)),
    "top-k+int4": (TopK(0.6), Quantize(7)),
    "rows+int8": (TopRows(0.5), Quantize(127)),
    "rows+top-k+bf16": (TopRows(0.1), TopK(0.1), Bf16()),
}
FLOATS = st.floats(-1e3, 1e3, width=32)


def made_up(seed: int, layout: Layout = LAYOUT) -> Tensors:
    return Tensors(layout, torch.from_numpy(np.random.default_rng(seed).normal(size=layout.size).astype(np.float32)))


def outgoing(gradient: Tensors, before: UploadState | None = None, round: int = 1) -> OutgoingUpdate:
    state = Tensors(gradient.layout, -gradient.flat)
    sides = dict.fromkeys(gradient.layout.names, "model")
    return OutgoingUpdate(gradient, state, round, "silo", 0, sides, frozenset({"table"}), before)


def encoded(upload: CompressorChain, update: OutgoingUpdate) -> EncodedUpdate:
    """What leaves, where a compressor changed it."""
    sent = upload.compress(update)
    assert isinstance(sent, EncodedUpdate)
    return sent


def residual(state: UploadState | None) -> torch.Tensor:
    assert state is not None
    assert state.residual is not None
    return state.residual.flat


def opened(sent: Tensors | EncodedUpdate) -> Tensors:
    return sent.open(LAYOUT) if isinstance(sent, EncodedUpdate) else sent


@given(st.data())
def test_positions_come_back_however_they_are_written(data: Any) -> None:
    units = data.draw(st.integers(1, 3000))
    chosen = data.draw(st.lists(st.integers(0, units - 1), unique=True, max_size=60).map(sorted))
    values = torch.tensor([float(i + 1) for i in range(len(chosen))])
    layout = Layout(("w",), ((units,),))
    coded = EncodedUpdate.of({"w": EncodedTensor((units,), values, where=torch.tensor(chosen, dtype=torch.int64))})
    expected = torch.zeros(units)
    expected[chosen] = values
    assert torch.equal(coded.open(layout).flat, expected)
    assert coded.words.numel() * 4 <= 4 * len(chosen) + -(-units // 8) + 3, "never longer than one bit each"


@given(st.lists(FLOATS, max_size=600), st.sampled_from(["float32", "bfloat16", "int8", "int4"]))
def test_numbers_come_back_as_near_as_their_code_allows(values: Any, form: Any) -> None:
    layout = Layout(("w",), ((len(values),),))
    part = EncodedTensor((len(values),), torch.tensor(values))
    most = {"int8": 127, "int4": 7}.get(form, 0)
    step = {"float32": None, "bfloat16": Bf16()}.get(form, Quantize(most))
    parcel = step.compress({"w": part}, outgoing(Tensors(layout, part.values))) if step else {"w": part}
    back = EncodedUpdate.of(parcel).open(layout).flat
    if form == "float32":
        assert torch.equal(back, part.values)
    elif form == "bfloat16":
        assert torch.equal(back, part.values.bfloat16().float())
    else:
        for start in range(0, len(values), BLOCK):
            block = part.values[start : start + BLOCK]
            assert (back[start : start + BLOCK] - block).abs().max() <= block.abs().max() / most * 0.5001 + 1e-37


@given(st.lists(FLOATS, min_size=1, max_size=600))
def test_two_bits_follow_their_formula_and_lose_what_is_orthogonal(values: Any) -> None:
    layout, x = Layout(("w",), ((len(values),),)), torch.tensor(values)
    parcel = Ternary().compress({"w": EncodedTensor((len(values),), x)}, outgoing(Tensors(layout, x)))
    back = EncodedUpdate.of(parcel).open(layout).flat
    for start in range(0, len(values), BLOCK):
        block, sent = np.asarray(values[start : start + BLOCK], np.float64), back[start : start + BLOCK].numpy()
        kept = np.abs(block) > 0.7 * np.abs(block).mean()
        scale = np.abs(block[kept]).mean() if kept.any() else 0.0
        if np.min(np.abs(np.abs(block) - 0.7 * np.abs(block).mean())) > 1e-4 * np.abs(block).max():  # no tie to round
            np.testing.assert_allclose(sent, np.sign(block) * kept * scale, rtol=1e-4, atol=1e-30)
        lost, whole = np.sum((block - sent) ** 2), np.sum(block**2)
        assert lost <= whole * (1 - 1 / BLOCK) + 1e-9, "a contraction, also where a single value is not zero"


def test_with_feedback_two_bits_reach_the_optimum_and_without_they_do_not() -> None:
    """Gradient descent on ½‖x − target‖²: the quantised steps end at the target, but for feedback."""
    target, left = made_up(3).flat * torch.linspace(0.001, 3, LAYOUT.size), {}
    for feedback in (True, False):
        upload, state, x = CompressorChain((Ternary(),), feedback), None, torch.zeros(LAYOUT.size)
        for round in range(1, 400):
            out = outgoing(Tensors(LAYOUT, 0.1 * 0.98**round * (x - target) / (x - target).norm()), state, round)
            x = x - opened(upload.compress(out)).flat * 30
            state = out.kept
        left[feedback] = float((x - target).norm() / target.norm())
    assert left[True] < 0.5 * left[False], left


@pytest.mark.parametrize("name", CHAINS)
def test_error_feedback_telescopes(name: str) -> None:
    """Σ sent = Σ g − e: after many rounds all that is missing is one round's residual."""
    upload, state = CompressorChain(CHAINS[name]), None
    total, sent = torch.zeros(LAYOUT.size), torch.zeros(LAYOUT.size)
    residuals = []
    for round in range(1, 30):
        gradient = made_up(round)
        out = outgoing(gradient, state, round)
        sent += opened(upload.compress(out)).flat
        total += gradient.flat
        state = out.kept
        np.testing.assert_allclose(sent + residual(state), total, atol=2e-4)
        residuals.append(float(residual(state).norm()))
    assert residuals[-1] < 25 * made_up(0).flat.norm(), "what is missing stays bounded"


def test_without_feedback_the_same_values_are_lost_again_and_again() -> None:
    """The control: a value that is never among the largest never arrives."""
    gradient = Tensors(Layout(("w",), ((10,),)), torch.tensor([1.0] + [0.1] * 9))
    arrived = {}
    for feedback in (True, False):
        upload, state, arrived[feedback] = CompressorChain((TopK(0.1),), feedback), None, torch.zeros(10)
        for round in range(1, 40):
            out = outgoing(gradient, state, round)
            arrived[feedback] += encoded(upload, out).open(gradient.layout).flat
            state = out.kept
    assert arrived[False][1:].abs().sum() == 0
    assert arrived[True][1:].min() > 0


@pytest.mark.parametrize("name", CHAINS)
def test_bytes_are_those_of_the_wire(name: str) -> None:
    gradient = made_up(1)
    sent = encoded(CompressorChain(CHAINS[name]), outgoing(gradient))
    update = Update(NOTHING, 1, 1, 1, 0.0, 0.0, encoded=sent)
    back = wire.decode(wire.encode(update))
    assert wire.equal(update, back)
    assert torch.equal(opened(back.encoded).flat, opened(sent).flat)
    assert wire.size(update) == pytest.approx(len(wire.encode(update)), abs=320), "but for the file's own header"
    assert wire.size(update) < wire.size(replace(update, encoded=None, gradient=gradient))


def test_int8_is_a_quarter_int4_an_eighth_int2_a_fifteenth_and_one_percent_of_values_far_less() -> None:
    layout = Layout(("w",), ((1000, 100),))
    gradient = made_up(0, layout)

    def size(*steps: Any) -> Any:
        return encoded(CompressorChain(steps), outgoing(gradient)).words.numel() * 4 / (4 * layout.size)

    assert size(Quantize(127)) == pytest.approx(0.25 * (1 + 4 / BLOCK), rel=1e-3)
    assert size(Quantize(7)) == pytest.approx(0.125 * (1 + 8 / BLOCK), rel=1e-3)
    assert size(Ternary()) == pytest.approx(0.0625 * (1 + 16 / BLOCK), rel=1e-3)
    assert size(Bf16()) == pytest.approx(0.5, rel=1e-3)
    assert size(TopK(0.01), Quantize(127)) < 0.01
    assert size(TopK(0.1), Quantize(127)) < 0.06


def test_rows_that_did_not_move_are_not_sent_and_nothing_is_lost() -> None:
    gradient = made_up(0)
    table = gradient["table"]
    table[5:] = 0.0
    sent = encoded(CompressorChain((TopRows(),)), outgoing(gradient))
    assert torch.equal(sent.open(LAYOUT).flat, gradient.flat)
    assert sent.words.numel() < LAYOUT.size - 30 * 16


def test_of_rows_that_all_moved_those_that_moved_most_are_sent() -> None:
    gradient = made_up(0)
    gradient["table"][7].mul_(100)
    gradient["table"][9].mul_(50)
    upload = CompressorChain((TopRows(0.05),))
    first = outgoing(gradient)
    sent = encoded(upload, first).open(LAYOUT)
    assert (sent["table"].abs().sum(dim=1) > 0).nonzero().view(-1).tolist() == [7, 9], "2 of 40"
    assert torch.equal(sent["matrix"], gradient["matrix"]), "other tensors leave whole"
    late = encoded(upload, outgoing(Tensors.zeros(LAYOUT), first.kept, 2)).open(LAYOUT)
    assert int((late["table"].abs().sum(dim=1) > 0).sum()) == 2, "what was left behind follows"
    assert not late["table"][7].any()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", CHAINS)
def test_an_update_that_is_not_finite_is_not_hidden_by_its_code_nor_remembered(name: str, bad: Any) -> None:
    upload, first = CompressorChain(CHAINS[name]), outgoing(made_up(0))
    upload.compress(first)
    broken = made_up(1)
    broken.flat[3] = bad
    second = outgoing(broken, first.kept, 2)
    assert not torch.isfinite(opened(upload.compress(second)).flat).all()
    assert torch.equal(residual(second.kept), residual(first.kept))
    for step in CHAINS[name]:
        part = EncodedTensor((LAYOUT.size,), broken.flat)
        coded = step.compress({"table": part}, outgoing(broken))["table"]
        assert not torch.isfinite(coded.dense()).all(), f"{step} would hide it"


def coded(text: str, words: int = 4) -> EncodedUpdate:
    return EncodedUpdate(text, torch.zeros(words))


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (coded('[["invented",[7],"float32",7]]', 7), "its update has invented .*which the model does not have"),
        (coded('[["bias",[8],"float32",8]]', 8), r"its update has bias \[8\], which the model does not have"),
        (coded('[["bias",[7],"float32",7],["bias",[7],"float32",7]]', 14), "twice"),
        (coded('[["bias",[7],"float32",6]]', 6), "6 values of bias, where 7 belong"),
        (coded('[["bias",[7],"float32",7]]', 3), "cannot be read"),
        (coded('[["bias",[7],"float32",7]]', 9), "8 bytes too many"),
        (coded('[["bias",[7],"float64",7]]', 14), "cannot be read"),
        (coded('[["bias",[7],"float32",2,"gaps",3,2]]', 4), "in rows of 3"),
        (coded('[["bias",[7],"float32",2,"gaps",0,2]]', 4), "in rows of 0"),
        (coded('[["bias",[7],"float32",8,"gaps",1,8]]', 10), "a value at 7, where the tensor ends at 7"),
        (coded('[["bias",[7],"float32",8,"nonsense",1,8]]', 10), "positions written as 'nonsense'"),
        (coded('[["bias",[7],"float32",8,"gaps",1,-8]]', 10), "cannot be read"),
        (coded('[["bias",[7],"float32",1e400,"gaps",1.5,2]]', 10), "in rows of 1.5|cannot be read"),
        (coded('[[["bias"],[7],"float32",7]]', 7), "cannot be read"),
        (coded("{}"), "16 bytes too many"),
        (coded("nonsense"), "cannot be read"),
        (coded("[1, 2]"), "cannot be read"),
    ],
)
def test_what_does_not_fit_the_model_is_refused_with_a_reason(made: Any, reason: str) -> None:
    with pytest.raises(EncodingError, match=reason):
        made.open(LAYOUT)


@given(st.binary(max_size=400), st.text(max_size=60))
def test_any_bytes_are_opened_or_refused_never_worse(data: Any, text: Any) -> None:
    padded = data + b"\0" * (-len(data) % 4)
    words = torch.frombuffer(bytearray(padded), dtype=torch.float32) if padded else torch.zeros(0)
    for line in (text, '[["bias",[7],"int8",3,"gaps",1,3]]', '[["table",[40,16],"bfloat16",32,"bits",16,5]]'):
        with contextlib.suppress(EncodingError):
            assert EncodedUpdate(line, words).open(LAYOUT).layout.size <= LAYOUT.size
