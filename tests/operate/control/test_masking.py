"""No page of a log shows a secret's value, wherever its borders fall and whatever is not there yet."""

import time

from hypothesis import given
from hypothesis import strategies as st

from phalanx.operate.control.masking import MASK, MASKED_BYTES_MIN, page

VALUE = b"tiger-canary-0001"


def read_of(log: bytes, offset: int, limit: int) -> bytes:
    return log[offset : offset + limit]


def pages(log: bytes, values: list[bytes], limit: int, over: bool = True) -> list[bytes]:
    """Every page in turn, as a reader gets them."""
    shown, offset = [], 0
    while True:
        part = page(lambda at, size: read_of(log, at, size), offset, limit, values, over)
        shown.append(part.shown)
        offset += part.taken
        if part.taken == 0:
            return shown


def test_a_value_is_struck_out_once_wherever_the_border_falls() -> None:
    log = b"before " + VALUE + b" between " + VALUE + VALUE + b" after"
    for limit in range(4, len(log) + 2):
        assert b"".join(pages(log, [VALUE], limit)) == b"before *** between *** after", limit


def test_a_page_that_begins_or_ends_inside_a_value_shows_nothing_of_it() -> None:
    log = b"x" * 40 + VALUE + b"y" * 40
    for offset in range(len(log)):
        for limit in (4, 7, 30):
            shown = page(lambda at, size: read_of(log, at, size), offset, limit, [VALUE], True).shown
            assert set(shown) <= set(b"xy*"), (offset, limit, shown)


def test_the_beginning_of_a_value_at_the_end_of_a_log_that_grows_waits() -> None:
    log = b"password is " + VALUE
    for size in range(len(log)):
        assert b"".join(pages(log[:size], [VALUE], 64, over=False)) == log[: min(size, len(b"password is "))]
    assert b"".join(pages(log, [VALUE], 64, over=False)) == b"password is ***"


def test_a_value_cut_off_by_the_end_of_a_log_is_struck_out_too() -> None:
    for size in range(1, len(VALUE)):
        shown = b"".join(pages(b"was " + VALUE[:size], [VALUE], 64))
        assert shown == b"was " + (MASK if size >= MASKED_BYTES_MIN else VALUE[:size])


def test_short_values_are_left_and_a_log_without_secrets_is_untouched() -> None:
    log = b"the key is 1234567 or so"
    assert b"".join(pages(log, [b"1234567"], 5)) == log
    assert b"".join(pages(log, [], 5)) == log


def test_a_log_and_a_value_made_to_overlap_everywhere_cost_no_minutes() -> None:
    log, value = b"a" * 2**21, b"a" * 2**15
    start_s = time.process_time()
    assert page(lambda at, size: read_of(log, at, size), 2**20, 2**16, [value], True).shown == b""
    assert time.process_time() - start_s < 2


@given(st.binary(max_size=60).map(lambda seed: bytes(b"ab"[one % 2] for one in seed)), st.integers(8, 12))
def test_every_occurrence_is_struck_out_and_nothing_beside_them(log: bytes, size: int) -> None:
    values = [b"abababababab"[:size], b"aaaaaaaaaaaa"[:size], b"aabaabaabaab"[:size]]
    found = {at + step for value in values for at in range(len(log)) if log.startswith(value, at) for step in range(len(value))}
    part = page(lambda at, size: read_of(log, at, size), 0, 100, values, False)
    assert part.shown.replace(MASK, b"") == bytes(byte for at, byte in enumerate(log[: part.taken]) if at not in found)


@given(
    st.lists(st.sampled_from([b"a", b"ab", b"aaaaaaaaa", b"abababab", b"abababababa", b"\n", b"b" * 9]), max_size=30),
    st.integers(4, 40),
)
def test_pages_put_together_never_hold_a_value_and_lose_nothing_else(parts: list[bytes], limit: int) -> None:
    values = [b"abababab", b"aaaaaaaa"]
    log = b"".join(parts)
    shown = b"".join(pages(log, values, limit))
    assert shown == b"".join(pages(log, values, len(log) + 1)), "the size of pages changes nothing"
    assert not any(value in shown for value in values)
    assert shown.replace(MASK, b"").count(b"\n") == log.count(b"\n")
