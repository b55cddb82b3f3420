"""Who runs where, now: `schedule(Snapshot) -> Plan`, pure. Imports core and fabric; no clock, no I/O, no randomness."""

from phalanx.decide.scheduler.explain import never_fits
from phalanx.decide.scheduler.plan import Plan, Start, Wait
from phalanx.decide.scheduler.schedule import schedule
from phalanx.decide.scheduler.snapshot import NodeFacts, PendingJob, PutOff, RunningJob, Snapshot

__all__ = ["schedule", "never_fits", "Snapshot", "NodeFacts", "PendingJob", "PutOff", "RunningJob", "Plan", "Start", "Wait"]
