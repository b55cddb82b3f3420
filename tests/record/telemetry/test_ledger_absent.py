"""The ledger of a gang that goes on without some of its ranks."""

from phalanx.core.events import RankSaid
from phalanx.core.ids import AttemptId
from phalanx.core.records import Recovered
from phalanx.record.telemetry.ledger.account import account
from tests.record.telemetry.test_ledger import FIRST, JOB, ended, log, placed, step, submitted, up, used


def went_on(step: int, absent: tuple[int, ...], attempt: AttemptId = FIRST) -> RankSaid:
    planned = not absent
    return RankSaid(JOB, attempt, Recovered(
        rank=1, step=step, generation=2 + planned, why="", replaced=(), pids=(), steps_lost=0, recovery_ms=9, at_ms=0,
        absent=absent, planned=planned,
    ))  # fmt: skip


def test_a_device_whose_rank_has_no_part_in_its_gang_is_absent_until_it_has() -> None:
    """Told by the gang, since a rank that writes no records might as well be slow."""
    events = log(
        (0, up(devices=2)), (0, submitted()), (0, placed(devices=(0, 1))), (3_000, went_on(2, (0,))), (3_500, went_on(3, (0,))),
        (9_000, went_on(8, ())), (12_000, ended()),
    )  # fmt: skip
    fell = [step(1, 0, 1_000), step(2, 1_000, 2_900), step(9, 9_500, 12_000)]
    steps = {FIRST: [*fell, *(step(at, 1_000 * at - 1_000, 1_000 * at, rank=1) for at in range(1, 13))]}
    seen = used(account(events, steps, 0, 12_000))
    assert seen["absent"] == 9_000 - 3_000
    assert sum(seen.values()) == 24_000
    assert seen["productive"] == 12_000 + 2_900 + 2_500
    assert seen["running_unmeasured"] == 100 + 500, "between the last step and the word, and before the first step after it"
    end = log((0, up(devices=1)), (0, submitted()), (0, placed(devices=(0,))), (3_000, went_on(2, (0,))), (12_000, ended()))
    assert used(account(end, {FIRST: fell[:2]}, 0, 12_000))["absent"] == 9_000, "to the end, and that is no draining"


def test_the_word_of_an_older_generation_that_comes_late_is_none() -> None:
    events = log(
        (0, up(devices=2)), (0, submitted()), (0, placed(devices=(0, 1))), (9_000, went_on(8, ())), (9_500, went_on(2, (0,))),
        (12_000, ended()),
    )  # fmt: skip
    assert used(account(events, {}, 0, 12_000)).get("absent", 0) == 0
