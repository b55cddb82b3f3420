"""A run that saves as often as pays goes by what its own saves and steps take."""

import logging

import pytest

from phalanx.core.interval import daly_s
from phalanx.job.train import often
from phalanx.job.train.often import FIRST_STEP, Often, Rhythm


def test_until_a_save_is_known_to_be_durable_the_first_distance_is_kept() -> None:
    measured = Often(mtbf_s=3600.0)
    measured.stepped(2.0)
    measured.saved(0.01)
    assert measured.steps() == FIRST_STEP
    measured.durable(1.0)
    assert measured.steps() == 5  # sqrt(2 x 0.01 x 3600) = 8.5 s
    assert "holds training up for 10.0 ms" in measured.sentence() and "every 1.0 h" in measured.sentence()


def test_one_slow_step_or_save_changes_nothing() -> None:
    measured = Often(mtbf_s=3600.0)
    for odd in (1.0, 1.0, 1.0, 500.0, 1.0):
        measured.stepped(odd)
        measured.saved(odd / 100)
        measured.durable(odd)
    assert measured.steps() == pytest.approx(daly_s(0.01, 3600.0), abs=1)


def test_all_ranks_save_at_the_steps_that_rank_zero_decides(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    told: list[int] = []

    def decided(decide):  # type: ignore[no-untyped-def]  # on rank 0 its own answer, on the other what rank 0 said
        if playing == 0:
            told.append(decide())
            return told[-1]
        return told[len(saves[1])]

    monkeypatch.setattr(often, "decided_by_rank_zero", decided)
    saves: list[list[int]] = [[], []]
    for playing in (0, 1):
        now = [0.0]
        rhythm = Rhythm(3600.0, lambda now=now: now[0])  # type: ignore[misc]  # bound by default
        for step in range(101, 161):  # resumed after step 100
            now[0] += 2.0 if playing == 0 else 7.0  # the other rank's own measurements are of no account
            rhythm.stepped(0.0)
            if rhythm.is_due(step):
                rhythm.begun(step, 0.01)
                saves[playing].append(step)
                if playing == 0:
                    rhythm.durable(step)
    assert saves[0] == saves[1] and saves[0][0] == 110
    apart = {later - sooner for sooner, later in zip(saves[0][1:], saves[0][2:], strict=False)}
    assert saves[0][1] == 120 and apart == {5} and "checkpoints every 5 steps from here" in caplog.text
