"""Devices that a job does not compete for: those that gangs are ended for, and those of a gang that lost some of its nodes.

A claim names exact devices. They are offered to nobody else, whoever lets go of them first, so that a gang that was ended for
another cannot come back into its own hole.
"""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from phalanx.core.devices import WHOLE, Placement
from phalanx.core.ids import JobId
from phalanx.core.reasons import MakingRoom
from phalanx.decide.scheduler.room.gangs import Gangs
from phalanx.decide.scheduler.snapshot import PendingJob, RunningJob
from phalanx.decide.scheduler.where.fit import fit
from phalanx.decide.scheduler.where.fleet import Counts, Fleet, Ground


def holders(jobs: Iterable[PendingJob], gangs: Gangs, ground: Ground) -> dict[JobId, list[RunningJob]]:
    """Gangs that still hold devices of each job's claim. Of a device that shares hold only those count that are ending: the others
    may keep what they have."""
    claimed: dict[int, list[tuple[JobId, frozenset[int], bool]]] = {}
    found: dict[JobId, list[RunningJob]] = {}
    for job in jobs:
        if job.claim is not None:
            found[job.facts.job] = []
            for part in job.claim.slices:
                row = ground.row.get(part.node, -1)
                claimed.setdefault(row, []).append((job.facts.job, frozenset(part.devices), part.milli < WHOLE))
    for at in np.flatnonzero(np.isin(gangs.slices.row, list(claimed))):
        gang = gangs.all[gangs.slices.gang[at]]
        held = gang.placement.slices[gangs.slices.part[at]].devices
        for job_id, devices, is_share in claimed[int(gangs.slices.row[at])]:
            holds = not devices.isdisjoint(held) and (gang.stopping or not is_share)
            if holds and gang not in found[job_id][-1:]:
                found[job_id].append(gang)
    return found


def is_sound(job: PendingJob, fleet: Fleet, held_by: list[RunningJob], promised: Placement) -> bool:
    """Whether the claim can still come true: its nodes may be given work, and who holds its devices is ending, or is on devices on
    which ranks that were given up have yet to end. promised: what of it is free already."""
    assert job.claim is not None
    if not all(gang.stopping for gang in held_by):
        return False
    free = {(part.node, index) for part in promised.slices for index in part.devices}
    held = {(part.node, index) for gang in held_by for part in gang.placement.slices for index in part.devices}
    for part in job.claim.slices:
        row = fleet.ground.row.get(part.node)
        if row is None or not fleet.ground.schedulable[row] or fleet.ground.nodes[row].closing_ms is not None:
            return False
        fenced = fleet.ground.nodes[row].fenced
        if not all((part.node, index) in free or (part.node, index) in held or index in fenced for index in part.devices):
            return False
    return True


def making_room(job: PendingJob, held_by: list[RunningJob], promised: Placement) -> MakingRoom:
    """Who has yet to let go, of how many devices."""
    assert job.claim is not None
    return MakingRoom(tuple(gang.facts.job for gang in held_by), job.claim.world_size - promised.world_size)


def on_former(job: PendingJob, kind: str, fleet: Fleet, free: Counts) -> list[int] | None:
    """Rows for a gang that ran before: its former nodes that still do, each with its former rank, and others only in the place of
    those that do not. None when it is better placed anew."""
    shape, last = job.facts.shape, job.last
    if last is None or len(last.slices) != shape.num_nodes or shape.request.is_share:
        return None
    roomy = fleet.roomy(shape, kind, free)
    former = [fleet.ground.row.get(part.node, -1) for part in last.slices]
    good = [row if row >= 0 and roomy[row] and fleet.ground.nodes[row].node not in job.avoids else -1 for row in former]
    missing = [rank for rank, row in enumerate(good) if row < 0]
    if not missing or len(missing) == len(good):
        return good if not missing else None
    others = _in_place(job, kind, fleet, free, good, missing)
    for rank, row in zip(missing, others, strict=False):
        good[rank] = row
    return good if len(others) == len(missing) else None


def _in_place(job: PendingJob, kind: str, fleet: Fleet, free: Counts, good: list[int], missing: list[int]) -> list[int]:
    """Rows for the nodes of the missing ranks, where the job's tiers allow them; fewer than those when there are too few."""
    shape, ground = job.facts.shape, fleet.ground
    kept = [row for row in good if row >= 0]
    left = free.copy()
    left[kept] = 0
    if shape.within is not None:
        tier = ground.tier(shape.within)
        left = np.where(tier == tier[kept[0]], left, 0)
    anywhere = replace(shape, num_nodes=len(missing), min_nodes=0, within=None, group=0)
    if shape.group <= 1:
        rows = fit(anywhere, kind, fleet, left, job.avoids)
        return [] if rows is None else [int(row) for row in rows]
    found: list[int] = []
    number = ground.tier(shape.group_tier)
    for rank in missing:
        first = rank // shape.group * shape.group
        beside = [row for row in good[first : first + shape.group] if row >= 0]
        near = np.where(number == number[beside[0]], left, 0) if beside else np.zeros_like(left)
        rows = fit(replace(anywhere, num_nodes=1), kind, fleet, near, job.avoids)
        if rows is None:
            break
        found.append(int(rows[0]))
        left[rows[0]] = 0
    return found
