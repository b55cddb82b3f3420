"""How a team's admin parts among its own queues what the team was given. Pure.

What is given is the platform's to say: it stands at the team's highest queue, which only platform admins change.
"""

from dataclasses import replace
from typing import Final

from phalanx.core.errors import Conflict, Forbidden, SpecError
from phalanx.core.people import Person
from phalanx.core.policy import Policy, Queue
from phalanx.core.policy_parse import dump_policy, parse_policy
from phalanx.core.policy_rules import guaranteed
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
    found = parse_policy(dump_policy(changed))
    if not person.rules:
        _check_given(policy, found, top)
    return found


def highest(policy: Policy, queue: str) -> str:
    """The one above it that is of its team while what is above that one is not; itself where it is that one."""
    team = policy.team_of(queue)
    while (above := policy.queues.get(queue, Queue()).parent) and policy.team_of(above) == team:
        queue = above
    return queue


def _check_given(before: Policy, after: Policy, top: str) -> None:
    """Raises SpecError where the team would be guaranteed more than it is: somebody else would have less."""
    known = guaranteed(before, top)
    for kind, count in guaranteed(after, top).items():
        if count > known.get(kind, 0):
            fix = (
                f"would make it {count} that {top} is guaranteed, which was given {known.get(kind, 0)}; "
                "part what it has, or ask the platform's admins for more"
            )
            raise SpecError(f"quota.{kind}", count, fix)
