"""Messages of versions that are one apart: new fields at their defaults do not travel, missing ones are filled in."""

import json
from dataclasses import dataclass, field, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hansa.core import wire
from hansa.core.codec import DecodingError, Packed, put_together, take_apart
from hansa.core.messages import Failure, Train, no_tensors
from hansa.core.tensors import Layout, Tensors
from tests.toys import update


@dataclass(frozen=True)
class Before:
    """A message of this version."""

    name: str
    count: int = 3
    share: float = 0.0
    tags: tuple[str, ...] = ()
    sizes: dict[str, int] = field(default_factory=dict)
    extra: Tensors = field(default_factory=no_tensors)


@dataclass(frozen=True)
class After(Before):
    """The same message of the next version, which has one more field."""

    limit: float | None = None


def text(value: object) -> dict[str, object]:
    """The JSON of a value that holds no vectors."""
    vectors: dict[str, object] = {}
    data = json.loads(json.dumps(take_apart(value, "", vectors)))  # type: ignore[arg-type]
    assert not vectors
    assert isinstance(data, dict)
    return data


def read(kind: type, data: object) -> object:
    return put_together(kind, data, kind.__name__, Packed([], [], {}))


MADE = st.builds(
    After,
    st.text(max_size=5),
    st.integers(0, 5),
    st.sampled_from([0.0, -0.0, 0.5]),
    st.lists(st.text(max_size=3), max_size=2).map(tuple),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
    st.builds(no_tensors),
    st.one_of(st.none(), st.floats(0, 1)),
)


@given(MADE)
def test_what_is_encoded_comes_back_bit_for_bit(made: After) -> None:
    back = read(After, text(made))
    assert isinstance(back, After)
    assert repr(replace(back, extra=made.extra)) == repr(made), "0.0 and -0.0 differ"
    assert not back.extra.layout.names


@given(MADE)
def test_an_older_version_reads_a_newer_message_unless_it_uses_the_new_field(made: After) -> None:
    if made.limit is None:
        older = read(Before, text(made))
        assert isinstance(older, Before)
        assert (older.name, older.count, older.tags) == (made.name, made.count, made.tags)
        newer = read(After, text(older))
        assert isinstance(newer, After), "and the newer one reads the older one's"
        assert (newer.name, newer.count, newer.tags, newer.limit) == (made.name, made.count, made.tags, None)
        return
    with pytest.raises(DecodingError, match="no field limit: it may come from a newer version"):
        read(Before, text(made))


def test_a_field_without_a_default_is_needed() -> None:
    with pytest.raises(DecodingError, match="needs the fields"):
        read(Before, {"count": 4})


def test_a_plain_update_says_only_what_it_has() -> None:
    layout = Layout(("w",), ((2,),))
    header, vectors = wire.split(Train(3, Tensors(layout, torch.ones(2)), 2))
    assert set(vectors) == {"model"}
    assert set(json.loads(header.split("\n")[0])["body"]) == {"round", "model", "durable"}
    sent = update([1.0, -1.0], samples=10, loss=0.5)
    assert wire.equal(wire.decode(wire.encode(sent)), sent)
    assert wire.decode(wire.encode(Failure("gone"))) == Failure("gone")
