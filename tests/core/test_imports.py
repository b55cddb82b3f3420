"""The collector is off in long imports only, whatever becomes of them."""

import gc

import pytest

from phalanx.core.imports import long_imports


def test_the_collector_rests_and_what_was_made_is_looked_at_no_more() -> None:
    frozen = gc.get_freeze_count()
    try:
        with long_imports():
            assert not gc.isenabled()
        assert gc.isenabled()
        assert gc.get_freeze_count() > frozen
    finally:
        gc.unfreeze()


def test_an_import_that_fails_leaves_it_on() -> None:
    try:
        with pytest.raises(ModuleNotFoundError), long_imports():
            import phalanx.no_such_room  # type: ignore[import-not-found]  # noqa: F401
        assert gc.isenabled()
    finally:
        gc.unfreeze()


def test_where_it_was_off_it_stays_off() -> None:
    gc.disable()
    try:
        with long_imports():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()
