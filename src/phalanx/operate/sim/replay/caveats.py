"""What a simulation did not do that whoever asked for it may think it did: said with its figures."""

from collections.abc import Iterator, Sequence

from phalanx.core.policy import DEFAULT_QUEUE, Policy
from phalanx.core.units import count_of, utc_minute, utc_ms
from phalanx.decide.scheduler import NodeFacts
from phalanx.decide.scheduler.quotas import policy_checks
from phalanx.operate.sim.replay.engine import Setup
from phalanx.operate.sim.replay.gangs import ESTIMATE_MIN
from phalanx.operate.sim.replay.outcome import Outcome
from phalanx.operate.sim.traces.trace import Trace


def unkept(nodes: Sequence[NodeFacts], policy: Policy) -> Iterator[str]:
    """What the policy promises and these nodes cannot keep, which a live platform would refuse."""
    for field, value, fix in policy_checks.unkept(policy, nodes):
        yield f"The policy promises what this cluster cannot keep: {field} is {value!r}: {fix}."


def caveats(trace: Trace, outcome: Outcome, setup: Setup, is_sized: bool) -> Iterator[str]:
    """Each as a sentence. is_sized: the cluster was made to fit the trace."""
    if is_sized and not trace.machine_devices:
        yield "The cluster was made as large as the trace's peak, so that jobs hardly wait; say with --cluster how large yours is."
    yield from _of_tenants(trace, setup.policy)
    yield from _of_spot(trace, outcome)
    yield from _of_limits(outcome, setup)
    yield from _of_times(outcome, setup)


def _of_tenants(trace: Trace, policy: Policy) -> Iterator[str]:
    """Queues that a live policy does not know are no queues."""
    unnamed = sorted({job.tenant for job in trace.jobs} - {*policy.queues, DEFAULT_QUEUE}) if policy.queues else []
    if unnamed:
        which = ", ".join(unnamed[:3]) + (f" and {len(unnamed) - 3} more" if len(unnamed) > 3 else "")
        one = len(unnamed) == 1
        has = "has weight 1 and no quota" if one else "have weight 1 and no quota each"
        said = f"The tenant{'' if one else 's'} {which} {'is' if one else 'are'} not in the policy and {has}"
        yield f"{said}; a live platform refuses jobs of a queue that its policy does not name."


def _of_spot(trace: Trace, outcome: Outcome) -> Iterator[str]:
    """Nodes that stand idle whatever the policy is."""
    spot = [node for node in outcome.nodes if node.spot]
    if spot and all(job.spot == "never" for job in trace.jobs):
        devices = count_of(sum(len(node.devices) for node in spot), "device")
        idle = f"the {count_of(len(spot), 'spot node')} of the cluster, with {devices}, stayed idle"
        yield f"No job of the trace may use spot nodes, so {idle}; a plain trace says who may in a column spot (allow, prefer)."


def _of_limits(outcome: Outcome, setup: Setup) -> Iterator[str]:
    """Where nobody says how long a job runs, what is kept for the first in line is kept from all."""
    waited = any((life.wait_ms or 0) > setup.interval_ms for life in outcome.lives)
    nobody = "none passes the first in line on the devices kept for it"
    if setup.limits.kind == "estimate":
        some = f"{outcome.num_limited:,} of {count_of(len(outcome.lives), 'job')} got a limit by --limits estimate"
        rule = f"the jobs of a tenant and size have one once {ESTIMATE_MIN} of them are over"
        yield f"{some}: {rule}{'' if outcome.num_limited or not waited else f'. So {nobody}'}."
    elif not outcome.num_limited and waited and setup.policy.backfill:
        yield f"No job says how long it runs, so {nobody}; try --limits estimate, exact or factor:1.5."


def _of_times(outcome: Outcome, setup: Setup) -> Iterator[str]:
    """The run has a place in time, and what the policy has of times may lie elsewhere."""
    begin_ms, end_ms = outcome.start_ms, outcome.start_ms + outcome.ended_ms
    outside = [
        name
        for name, booking in setup.policy.bookings.items()
        if utc_ms(booking.end) <= begin_ms or utc_ms(booking.start) >= end_ms
    ]
    if outside:
        which = ", ".join(outside[:3]) + (f" and {len(outside) - 3} more" if len(outside) > 3 else "")
        lies = f"booking {which} lies" if len(outside) == 1 else f"bookings {which} lie"
        run = f"from {utc_minute(begin_ms)} to {utc_minute(end_ms)}"
        yield f"The {lies} outside this run, which is {run}, and had no effect; --start sets another date."
    if setup.policy.windows:
        yield "No job of a trace names a window, so the policy's windows had no effect."
