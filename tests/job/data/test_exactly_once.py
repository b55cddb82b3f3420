"""The audit of what a run was given: right histories are complete, and each planted fault is named where it lies."""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from phalanx.core.data_audit import Reached
from phalanx.job.data.blocks import BlockShuffle
from phalanx.job.data.deliveries import ROW, Deliveries, Fields, Head
from phalanx.job.data.draws import DataOrder, PlainOrder, positions
from phalanx.job.data.exactly_once import Contents, audit
from phalanx.job.data.mixed import MixedOrder
from phalanx.job.data.mixture import Change, Mixture, Source
from phalanx.job.data.order import Indices
from phalanx.job.data.order_facts import facts_of
from phalanx.job.data.quarantine import Quarantined, SetAside, set_aside_of
from tests.drawn import examples

PLAIN = PlainOrder(num_samples=30, seed=1, global_batch=12, shuffle=BlockShuffle(4, 3))
MIXED = MixedOrder(Mixture([Source("a", weight=1), Source("b", weight=2)]), {"a": 20, "b": 33}, seed=2, global_batch=7)


def contents(source: int, samples: Indices, fields: Fields) -> NDArray[np.uint64]:
    return (samples * 1_000 + source + 5).astype(np.uint64)


def contents_of(order: DataOrder) -> Contents:
    """The same of each source by its name."""
    return lambda source, samples, fields: contents(sorted(order.names).index(order.names[source]), samples, fields)


@lru_cache(None)
def whole(order: Any, step: int) -> NDArray[Any]:
    draws = order.draws(positions(order, step))
    rows = np.empty(len(draws), dtype=ROW)
    rows["source"], rows["sample"] = draws.source, draws.sample
    for source in range(len(order.names)):
        of = draws.source == source
        rows["content"][of] = contents_of(order)(source, draws.sample[of], None)
    return rows


def given_to(order: Any, step: int, rank: int, world_size: int) -> NDArray[Any]:
    rows = whole(order, step)
    return rows[len(rows) * rank // world_size : len(rows) * (rank + 1) // world_size].copy()


def gang(order: DataOrder, attempt: int, world_size: int, start: int, stop: int, generation: int = 0) -> list[Deliveries]:
    data = dict.fromkeys(order.names, "m")
    return [
        Deliveries(
            Head(attempt=attempt, generation=generation, rank=rank, world_size=world_size, start=start, order=facts_of(order),
                 data=data, sequence=8),
            set_aside_of(order), {step: given_to(order, step, rank, world_size) for step in range(start, stop)},
        )
        for rank in range(world_size)
    ]  # fmt: skip


def without(log: Deliveries, step: int) -> Deliveries:
    return replace(log, batches={one: rows for one, rows in log.batches.items() if one != step})


def put(log: Deliveries, step: int, rows: NDArray[Any]) -> Deliveries:
    return replace(log, batches={**log.batches, step: rows})


@settings(max_examples=examples(25), deadline=None)
@given(data=st.data(), order=st.sampled_from([PLAIN, MIXED]))
def test_resizes_restarts_and_rollbacks_are_complete(data: st.DataObject, order: DataOrder) -> None:
    """Gangs begin at any step that the ones before have reached, and die with their ranks a step apart; a block is found bad."""
    logs: list[Deliveries] = []
    reached, now = 0, order
    for attempt in range(1, data.draw(st.integers(1, 5)) + 1):
        start, steps, world_size = data.draw(st.integers(0, reached)), data.draw(st.integers(0, 9)), data.draw(st.integers(1, 8))
        if not set_aside_of(now) and data.draw(st.booleans()):
            since = start * order.global_batch
            bad = SetAside(source=order.names[0], shard="s", block=0, samples=((2, 6),), since=since)
            now = Quarantined(order, [bad], 0.9)
        elif any(one.since > start * order.global_batch for one in set_aside_of(now)):
            now = order  # the run goes on from before it knew of the block
        ranks = gang(now, attempt // 2, world_size, start, start + steps, generation=attempt)
        if steps and data.draw(st.booleans()):
            ranks = [log if data.draw(st.booleans()) else without(log, start + steps - 1) for log in ranks]
        logs += ranks
        if any(log.batches for log in ranks):
            reached = min(max(log.batches, default=start - 1) for log in ranks) + 1
    found = audit(data.draw(st.permutations(logs)), order, contents)
    assert found.fault is None and found.complete
    assert found.samples == found.steps * order.global_batch
    assert found.steps == reached
    drawn = order.draws(positions(order, 0, found.steps))
    for number, source in enumerate(found.sources):
        count = int((drawn.source == number).sum())
        assert (source.samples, source.epochs * int(order.sizes[number]) + source.rest) == (count, count)
    assert found.contents == "compared"


def test_a_source_that_is_added_or_dropped_before_it_was_read_is_no_other_data() -> None:
    """Whatever its place among the others is."""
    sources = [Source("a", weight=1), Source("b", weight=2)]
    never = MixedOrder(Mixture([Source("never", weight=0), *sources]), {"never": 5, "a": 20, "b": 33}, seed=2, global_batch=7)
    later = MixedOrder(
        Mixture([Source("late", weight=0), *sources], changes=[Change(from_step=9, weights={"late": 1, "a": 1})]),
        {"late": 11, "a": 20, "b": 33}, seed=2, global_batch=7,
    )  # fmt: skip
    found = audit([*gang(never, 1, 2, 0, 6), *gang(MIXED, 2, 1, 5, 8), *gang(later, 3, 2, 8, 12)], later, contents_of(later))
    assert found.complete, found.says
    assert {one.name for one in found.sources if one.samples} == {"late", "a", "b"}
    gone = audit([*gang(later, 1, 2, 0, 11), *gang(MIXED, 2, 2, 11, 12)], MIXED, contents)
    assert gone.fault is not None and gone.fault.step == 10, "late was read by then"


def test_what_could_not_be_recorded_is_told_and_nothing_is_claimed_over_it() -> None:
    """A disk that takes nothing more cuts all logs of a node at one step, as if the run had gone no further."""
    logs = [replace(log, lost=3) for log in gang(PLAIN, 1, 2, 0, 6)]
    saved = Reached(by="the newest checkpoint is of", steps=6, attempt=1)
    for evidence in ((), (saved,)):
        found = audit(logs, PLAIN, contents, reached=evidence)
        assert (found.complete, found.ended, found.steps, found.lost) == (True, False, 6, 6)
        assert "rank 0 could not record 3 of its batches in attempt 1" in found.end
    missing = audit(logs, PLAIN, contents, reached=(replace(saved, steps=7),))
    assert missing.fault is not None and "rank 0 recorded nothing" in missing.fault.says and missing.lost == 6
    middle = audit([without(logs[0], 3), *logs[1:]], PLAIN, contents)
    assert middle.fault is not None and "recorded nothing, as of 3 batches that its disk did not take" in middle.fault.says
    again = audit([*logs, *gang(PLAIN, 2, 1, 6, 8)], PLAIN, contents, reached=(replace(saved, steps=8, attempt=2),))
    assert (again.complete, again.ended, again.lost) == (True, True, 6), "a later attempt has made and recorded those steps"


Fault = Callable[[list[Deliveries]], list[Deliveries]]
"""Of two gangs: 3 ranks from step 0 to 9, then 4 ranks from step 8 to 17."""


def doubled_rank(logs: list[Deliveries]) -> list[Deliveries]:
    """Rank 2 of the second gang reads what rank 1 does."""
    twin = replace(logs[4], head=logs[5].head)
    return [*logs[:5], twin, *logs[6:]]


def stale_world_size(logs: list[Deliveries]) -> list[Deliveries]:
    """Rank 1 of the second gang still thinks of three ranks."""
    stale = {step: given_to(PLAIN, step, 1, 3) for step in range(8, 18)}
    return [*logs[:4], replace(logs[4], batches=stale), *logs[5:]]


def other_content(logs: list[Deliveries]) -> list[Deliveries]:
    rows = logs[1].batches[5].copy()
    rows["content"][2] = contents(0, rows["sample"][:1], None)[0]
    return [logs[0], put(logs[1], 5, rows), *logs[2:]]


def another_sample(logs: list[Deliveries]) -> list[Deliveries]:
    rows = logs[1].batches[5].copy()
    rows[1] = logs[1].batches[6][0]
    return [logs[0], put(logs[1], 5, rows), *logs[2:]]


def swapped(logs: list[Deliveries]) -> list[Deliveries]:
    """Two ranks of one place: the batch has all of its samples, and is not the order's."""
    return [replace(logs[1], head=logs[0].head), replace(logs[0], head=logs[1].head), *logs[2:]]


def resumed_late(logs: list[Deliveries]) -> list[Deliveries]:
    """A loader a step ahead of the weights: step 10 is nobody's."""
    return [*logs[:3], *gang(PLAIN, 2, 4, 11, 18)]


def resumed_with_the_batch_before(logs: list[Deliveries]) -> list[Deliveries]:
    return [*logs[:3], *[put(log, 12, log.batches[11]) for log in logs[3:]]]


def another_size_in_a_head(logs: list[Deliveries]) -> list[Deliveries]:
    return [*logs[:5], replace(logs[5], head=replace(logs[5].head, world_size=3)), *logs[6:]]


def other_fields_in_a_head(logs: list[Deliveries]) -> list[Deliveries]:
    return [*logs[:5], replace(logs[5], head=replace(logs[5].head, fields=("png",))), *logs[6:]]


def one_too_many(logs: list[Deliveries]) -> list[Deliveries]:
    return [put(logs[0], 3, np.concatenate([logs[0].batches[3], logs[1].batches[3][:1]])), *logs[1:]]


FAULTS: dict[str, tuple[Fault, str, tuple[int, int, int], str]] = {
    "skipped step": (lambda logs: [logs[0], without(logs[1], 4), *logs[2:]], "missing", (1, 5, 1), "recorded nothing"),
    "step skipped by all": (lambda logs: [without(log, 12) for log in logs], "missing", (2, 13, 0), "recorded nothing"),
    "rank lost": (lambda logs: [*logs[:4], *logs[5:]], "missing", (2, 9, 1), "recorded nothing"),
    "doubled rank": (doubled_rank, "twice", (2, 9, 2), "another row of the step"),
    "stale world size": (stale_world_size, "twice", (2, 9, 1), "another row of the step"),
    "other content": (other_content, "content", (1, 6, 1), "was given other contents as sample"),
    "another sample": (another_sample, "other", (1, 6, 1), "not of this step where the order says"),
    "swapped ranks": (swapped, "twice", (1, 1, 0), "where the order says"),
    "resumed late": (resumed_late, "missing", (1, 11, 0), "recorded nothing"),
    "batch again": (resumed_with_the_batch_before, "other", (2, 13, 0), "not of this step"),
    "head of another gang": (another_size_in_a_head, "ranks", (2, 0, 2), "has world_size 3, and rank 0 has 4"),
    "fields of another gang": (other_fields_in_a_head, "ranks", (2, 0, 2), "has fields ('png',), and rank 0 has None"),
    "one too many": (one_too_many, "twice", (1, 4, 0), "one more than its part"),
    "no beginning": (lambda logs: logs[3:], "missing", (2, 1, 0), "nobody recorded the steps before step 9"),
}


@pytest.mark.parametrize(("plant", "kind", "where", "says"), FAULTS.values(), ids=FAULTS.keys())
def test_a_planted_fault_is_named_where_it_lies(plant: Fault, kind: str, where: tuple[int, int, int], says: str) -> None:
    right = [*gang(PLAIN, 1, 3, 0, 10), *gang(PLAIN, 2, 4, 8, 18)]
    assert audit(right, PLAIN, contents).complete
    found = audit(plant(right), PLAIN, contents)
    assert found.fault is not None and not found.complete
    attempt, step, rank = where
    assert (found.fault.kind, found.fault.attempt, found.fault.step, found.fault.rank) == (kind, attempt, step, rank)
    assert says in found.fault.says and found.says == found.fault.says
    if kind != "ranks" and step > 1:
        assert found.steps == step - 1 or kind == "content" or "before step" in says, "what comes before is right"


@settings(max_examples=examples(40), deadline=None)
@given(data=st.data())
def test_any_one_wrong_row_is_found(data: st.DataObject) -> None:
    logs = [*gang(MIXED, 1, 3, 0, 6), *gang(MIXED, 2, 2, 4, 9)]
    which, step = data.draw(st.sampled_from([(0, 2), (2, 3), (1, 0), (3, 4), (4, 8), (3, 7)]))
    rows = logs[which].batches[step].copy()
    at, field = data.draw(st.integers(0, len(rows) - 1)), data.draw(st.sampled_from(["source", "sample", "content"]))
    rows[field][at] ^= np.uint32(1) if field == "source" else rows[field].dtype.type(1)
    logs[which] = put(logs[which], step, rows)
    found = audit(logs, MIXED, contents)
    assert found.fault is not None and (found.fault.step, found.fault.rank) == (step + 1, logs[which].head.rank)


def test_what_was_made_again_does_not_count() -> None:
    """Also when it was wrong: nobody's weights have seen it."""
    lost = gang(PLAIN, 1, 3, 0, 10)
    lost[1] = put(lost[1], 9, lost[1].batches[3])
    found = audit([*lost, *gang(PLAIN, 2, 4, 8, 18)], PLAIN, contents)
    assert found.complete
    assert [(leg.first_step, leg.last_step, leg.superseded) for leg in found.legs] == [(1, 8, 2), (9, 18, 0)]
    assert found.says == (
        "216 samples as the order says: 7 whole epochs of data, each sample exactly once, and 6 samples of the next, none twice"
    )


def test_a_gang_that_came_to_nothing_between_two_does_not_count() -> None:
    """The last one goes on from what the first one had saved behind it."""
    found = audit([*gang(PLAIN, 1, 2, 0, 10), *gang(PLAIN, 2, 4, 3, 5), *gang(PLAIN, 3, 1, 9, 12)], PLAIN, contents)
    assert found.complete and [(leg.first_step, leg.last_step) for leg in found.legs] == [(1, 9), (0, 0), (10, 12)]


def test_reads_of_damaged_samples_are_counted_as_replaced() -> None:
    bad = SetAside(source="data", shard="s", block=0, samples=((2, 6),), since=36)
    held = Quarantined(PLAIN, [bad], 0.5)
    found = audit([*gang(PLAIN, 1, 3, 0, 3), *gang(held, 2, 3, 3, 10)], PLAIN, contents)
    assert found.complete and found.set_aside == 1
    source = found.sources[0]
    assert (source.samples, source.epochs, source.rest) == (120, 4, 0)
    drawn = PLAIN.draws(positions(PLAIN, 3, 7)).sample
    assert source.replaced == int(((drawn >= 2) & (drawn < 6)).sum()) > 4
    assert "reads of damaged samples were replaced as recorded" in found.says


def test_a_gang_that_forgot_what_was_set_aside_is_named() -> None:
    held = Quarantined(PLAIN, [SetAside(source="data", shard="s", block=0, samples=((2, 6),), since=36)], 0.5)
    found = audit([*gang(held, 1, 3, 0, 6), *gang(PLAIN, 2, 3, 6, 10)], PLAIN, contents)
    assert found.fault is not None and "had set aside" in found.fault.says
    other = [replace(log, head=replace(log.head, data={"data": "n"})) for log in gang(PLAIN, 2, 3, 6, 10)]
    found = audit([*gang(PLAIN, 1, 3, 0, 6), *other], PLAIN, contents)
    assert found.fault is not None and "reads other data as data" in found.fault.says


def test_contents_that_nobody_compared_are_said_so() -> None:
    logs = gang(PLAIN, 1, 3, 0, 6)
    assert audit(other_content(logs), PLAIN, "not compared: no data").contents == "not compared: no data"
    assert audit([], PLAIN).says == "nothing was delivered to all ranks yet"
