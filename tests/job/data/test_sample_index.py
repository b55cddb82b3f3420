"""The index of a tar: every place comes back, and no bytes do more than be refused."""

from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.job.data.tars.index import IndexBuilder, Place, parse
from tests.drawn import examples

TAR_BYTES = 10_000
PLACES = st.builds(Place, offset=st.integers(0, TAR_BYTES // 2), size=st.integers(0, TAR_BYTES // 2), sum=st.integers(0, 2**64 - 1))
SAMPLES = st.lists(
    st.tuples(
        st.text("abcż/", min_size=1, max_size=9), st.dictionaries(st.sampled_from(["jpg", "cls", "a.json"]), PLACES, min_size=1)
    ),
    min_size=1,
    max_size=6,
)


def built(samples: list[tuple[str, dict[str, Place]]]) -> bytes:
    builder = IndexBuilder()
    for key, places in samples:
        builder.add(key, places)
    return builder.to_bytes()


@settings(max_examples=examples(60), deadline=None)
@given(SAMPLES)
def test_what_goes_in_comes_out(samples: list[tuple[str, dict[str, Place]]]) -> None:
    index = parse(built(samples), len(samples), TAR_BYTES)
    assert [(index.key(row), index.places(row)) for row in range(len(index))] == samples
    assert index.fields == tuple(sorted({name for _, places in samples for name in places}))


@settings(max_examples=examples(150), deadline=None)
@given(SAMPLES, st.data())
def test_no_bytes_do_more_than_be_refused(samples: list[tuple[str, dict[str, Place]]], draw: st.DataObject) -> None:
    """What is taken has places in the tar alone."""
    data = bytearray(built(samples))
    for at, new in draw.draw(st.lists(st.tuples(st.integers(0, len(data) - 1), st.integers(0, 255)), max_size=4)):
        data[at] = new
    data = data[: draw.draw(st.sampled_from([len(data), len(data) - 1, 20, 0]))]
    try:
        index = parse(bytes(data), len(samples), TAR_BYTES)
    except ValueError:
        return
    for row in range(len(index)):
        assert isinstance(index.key(row), str)
        assert all(0 <= place.offset <= place.offset + place.size <= TAR_BYTES for place in index.places(row).values())
