"""Hostile text: nothing that a terminal obeys survives, everything readable does."""

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.errors import Conflict, ServerUnreachable, SpecError
from phalanx.show.cli.text import clean, clean_log, error_text


@given(st.text())
def test_what_is_shown_has_no_character_that_steers(text: str) -> None:
    shown = clean(text)
    assert not [one for one in shown if unicodedata.category(one) in ("Cc", "Cf", "Cs", "Zl", "Zp")]
    shown.encode()


@given(st.text(alphabet=st.characters(categories=("L", "N", "P", "S", "Zs"))))
def test_readable_text_is_left_alone(text: str) -> None:
    assert clean(text) == text


def test_a_log_keeps_its_lines() -> None:
    assert clean_log("a\tb\r\n\x1b[0m\x9b") == "a\tb\\x0d\n\\x1b[0m\\x9b"


def test_an_error_says_field_value_and_what_to_change() -> None:
    assert error_text(SpecError("name", "A\x1b", "write a")) == "name is 'A\\x1b': write a"
    assert error_text(Conflict("job", None, "has finished")) == "job: has finished"
    assert error_text(ServerUnreachable("gone\x07")) == "gone\\x07"
    assert len(error_text(SpecError("x", "y" * 10_000, "shorter"))) < 300
