"""What is found out with counts of devices, or gang by gang, is what whole masks and exact devices say."""

import numpy as np
from hypothesis import given, settings

from phalanx.decide.scheduler import Snapshot
from phalanx.decide.scheduler.memory import Memory
from phalanx.decide.scheduler.room.trimming import Trimming
from phalanx.decide.scheduler.round import Round
from phalanx.decide.scheduler.where.fit import fit
from tests.decide.scheduler.sharing import deserts_of
from tests.decide.scheduler.snapshots import snapshots
from tests.drawn import examples


@settings(max_examples=examples(150), deadline=None)
@given(snapshots())
def test_a_job_gets_what_it_would_if_each_gang_gave_its_devices_back(snapshot: Snapshot) -> None:
    round_ = Round.of(snapshot, Memory())
    for job in snapshot.pending:
        shape = job.facts.shape
        for kind in round_.eligible(shape):
            columns = round_.victims.columns(kind)
            ends = [int(number) for number in np.unique(columns.slice_gang)]
            exact, base = round_.fleet.copy(), round_.kept.free(job, kind)
            for number in ends:
                exact.give_back(round_.victims.gangs[number].facts.shape, round_.victims.releasable(number))
            open_ = round_.fleet.could_hold(shape, kind) & round_.kept.open(job, kind)
            rows = fit(shape, kind, exact, np.where(open_, exact.free[kind], base), job.avoids)
            trimming = Trimming(job, shape, kind, (open_, base), ends, round_)
            assert trimming.fits() == (rows is not None)
            if rows is not None:
                expected = exact.take(shape, kind, [int(row) for row in rows])
                assert trimming.placed() == trimming.placed() == expected


@settings(max_examples=examples(150), deadline=None)
@given(snapshots())
def test_one_gang_is_told_what_all_are(snapshot: Snapshot) -> None:
    deserts = deserts_of(snapshot)
    for job in snapshot.pending:
        for kind in ("H100", "T4"):
            protected, taken = deserts.protected(job.facts, kind), deserts.reclaimable(job.facts, kind, 2)
            for number in range(len(snapshot.running)):
                assert deserts.protects(job.facts, kind, number) == protected[number]
                assert deserts.may_reclaim(job.facts, kind, 2, number) == taken[number]
