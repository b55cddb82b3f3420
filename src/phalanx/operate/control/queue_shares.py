"""How a team's admin parts among its own queues what the team was given. Pure.

What is given is the platform's to say: it stands at the team's highest queue, which only platform admins change.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from phalanx.core.errors import Conflict, Forbidden, SpecError
from phalanx.core.people import Person
from phalanx.core.policy import ANY, Policy, Queue
from phalanx.core.policy_parse import dump_policy, parse_policy
from phalanx.core.policy_rules import guaranteed, problems
from phalanx.core.use_views import QueueShareRequest

_ASK: Final = "an admin of the platform changes that by `phalanx policy set`"


def parted(policy: Policy, name: str, asked: QueueShareRequest, person: Person) -> Policy:
    """The policy with what is asked for that queue, which it has and `person` sees; what is None stays. Raises Forbidden for who
    may not change it, SpecError for what cannot be, Conflict where nothing is asked."""
    team = policy.team_of(name)
    if not person.has("admin", team):
        raise Forbidden("queue", name, f"takes an admin of {f'team {team}' if team else 'the platform'}")
    top = highest(policy, name)
    if name == top and not person.rules:
        raise Forbidden("queue", name, f"is what team {team} was given; {_ASK}, and you part it among the queues below it")
    given = {field: value for field in ("weight", "quota", "limit") if (value := getattr(asked, field)) is not None}
    if not given:
        raise SpecError("body", "{}", "write a weight, a quota or a limit")
    if "quota" in given and policy.queues[name].cells is not None:
        raise Conflict("quota", name, f"is guaranteed whole cells, beside which no quota stands; {_ASK}")
    changed = replace(policy, queues={**policy.queues, name: replace(policy.queues[name], **given)})
    if person.rules:
        return parse_policy(dump_policy(changed))
    _check_given(policy, changed, name, top)
    _check_own(policy, changed, top)
    return changed


def highest(policy: Policy, queue: str) -> str:
    """The one above it that is of its team while what is above that one is not; itself where it is that one."""
    team = policy.team_of(queue)
    while (above := policy.queues.get(queue, Queue()).parent) and policy.team_of(above) == team:
        queue = above
    return queue


def _check_given(before: Policy, after: Policy, name: str, top: str) -> None:
    """Raises SpecError where the team could take more than it was given: somebody else would have less."""
    old, new = before.queues[name], after.queues[name]
    _check_limit(old.limit, new.limit, before.queues[top].limit, top)
    for kind in old.quota.keys() - new.quota.keys():  # by a quota in its entry it may be kept from borrowing
        raise SpecError(f"quota.{kind}", None, f"cannot be left out; write {kind}:0 to guarantee none")
    for queue in _way_up(before, name, top):
        known, own = guaranteed(before, queue), before.queues[queue]
        for kind, count in guaranteed(after, queue).items():
            if count <= known.get(kind, 0):
                continue
            if queue == top:
                fix = (
                    f"would make it {count} that {top} is guaranteed, which was given {known.get(kind, 0)}; "
                    "part what it has, or ask the platform's admins for more"
                )
                raise SpecError(f"quota.{kind}", count, fix)
            if not own.lend:
                fix = f"{queue} lends nothing, so others would have less while it is idle; keep to {known.get(kind, 0)}, or {_ASK}"
                raise SpecError(f"quota.{kind}", count, fix)


def _check_limit(old: Mapping[str, int], new: Mapping[str, int], given: Mapping[str, int], top: str) -> None:
    """Raises SpecError where more may be held by it of what the highest queue, whose limit is `given`, does not limit itself. A
    limit between the two counts for nothing: the team may have written it, as high as it likes."""
    if ANY in given:
        return
    fix = f"is raised where {top} has a limit of it alone; leave it in, at most as it was, or {_ASK}"
    for kind, most in old.items():
        now = new.get(kind, new.get(ANY))
        if kind not in given and (now is None or now > most):
            raise SpecError(f"limit.{kind}", now, fix)
    if ANY in old:  # a type that is named from now on does not count under it any more
        parts = [count for kind, count in new.items() if kind == ANY or (kind not in old and kind not in given)]
        if sum(parts) > old[ANY]:
            raise SpecError(f"limit.{ANY}", new[ANY], f"and the types that it covered make {sum(parts)} of {old[ANY]}: {fix}")


def _check_own(before: Policy, after: Policy, top: str) -> None:
    """Raises SpecError for what the change makes wrong in the team's own queues. What stands beside or above them cannot have
    become worse, since no more is guaranteed, and is not theirs to read."""
    stood = set(map(repr, problems(before)))
    own = {name for name in after.queues if top in _way_up(after, name, top)}
    for problem in problems(after):
        parts = problem[0].split(".")
        if parts[0] == "queues" and parts[1] in own and repr(problem) not in stood:
            raise SpecError(*problem)


def _way_up(policy: Policy, queue: str, top: str) -> list[str]:
    """From it to the highest of its team, or of the tree."""
    way = [queue]
    while way[-1] != top and (above := policy.queues[way[-1]].parent) in policy.queues and above not in way:
        way.append(above)
    return way
