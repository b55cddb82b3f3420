"""Circles are collected at steps that ranks share, and not in between."""

import gc
import weakref

import pytest

from phalanx.job.train.collector import EVERY_STEPS, collected_at_steps


class _Circle:
    def __init__(self) -> None:
        self.itself = self


def _circle() -> "weakref.ref[_Circle]":
    return weakref.ref(_Circle())


def test_a_circle_lasts_until_the_step_at_which_all_ranks_collect() -> None:
    with collected_at_steps() as collect:
        circle = _circle()
        many: list[list[int]] = [[] for _ in range(100_000)]  # enough for the collector to look through everything by itself
        assert circle() is not None
        collect(EVERY_STEPS - 1)
        assert circle() is not None
        collect(EVERY_STEPS)
        assert circle() is None
        del many
    assert gc.isenabled()


def test_after_a_step_that_failed_it_is_left_to_itself_again() -> None:
    with pytest.raises(RuntimeError, match="of a step"), collected_at_steps():
        raise RuntimeError("of a step")
    assert gc.isenabled()
