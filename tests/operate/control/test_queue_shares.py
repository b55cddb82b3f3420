"""A team's admin parts what the team was given: never more, nothing of others, and nothing but three numbers."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core.errors import Conflict, Forbidden, SpecError
from phalanx.core.people import BUILT_IN, Person
from phalanx.core.policy import Policy
from phalanx.core.policy_parse import parse_policy
from phalanx.core.policy_rules import guaranteed
from phalanx.core.use_views import QueueShareRequest
from phalanx.operate.control.queue_shares import highest, parted
from tests.drawn import examples
from tests.operate.control.served import served

POLICY = parse_policy(
    {
        "queues": {
            "all": {},
            "red": {"parent": "all", "team": "red", "quota": {"cpu": 4, "*": 2}, "limit": {"cpu": 6}},
            "vision": {"parent": "red", "quota": {"cpu": 3}},
            "deep": {"parent": "vision"},
            "speech": {"parent": "red", "quota": {"cpu": 1}},
            "blue": {"parent": "all", "team": "blue", "quota": {"cpu": 2}},
            "below": {"parent": "blue"},
            "cells": {"team": "green"},
            "celled": {"parent": "cells", "cells": {"type": "cpu", "count": 1}},
        }
    }
)
RITA = Person(user="rita", token="t", roles={"red": "admin", "blue": "member", "green": "admin"})


def asked(**share: object) -> QueueShareRequest:
    return QueueShareRequest(**share)  # type: ignore[arg-type]


def test_a_team_moves_what_it_has_between_its_queues() -> None:
    less = parted(POLICY, "vision", asked(quota={"cpu": 1}, weight=2.0), RITA)
    assert (less.queues["vision"].quota, less.queues["vision"].weight) == ({"cpu": 1}, 2.0)
    more = parted(less, "speech", asked(quota={"cpu": 3}), RITA)
    assert more.queues["speech"].quota == {"cpu": 3}
    assert guaranteed(more, "red") == guaranteed(POLICY, "red")
    untouched = {name: queue for name, queue in more.queues.items() if name not in ("vision", "speech")}
    assert untouched == {name: POLICY.queues[name] for name in untouched}
    assert parted(more, "deep", asked(limit={"*": 1}), RITA).queues["deep"].limit == {"*": 1}


@pytest.mark.parametrize(
    ("queue", "share", "error", "field"),
    [
        ("red", {"quota": {"cpu": 8}}, Forbidden, "queue"),
        ("red", {"weight": 9.0}, Forbidden, "queue"),
        ("below", {"weight": 9.0}, Forbidden, "queue"),
        ("all", {"weight": 9.0}, Forbidden, "queue"),
        ("vision", {"quota": {"cpu": 4}}, SpecError, "queues.red.quota.cpu"),
        ("deep", {"quota": {"cpu": 4}}, SpecError, "queues.vision.quota.cpu"),
        ("vision", {"quota": {"H100": 3}}, SpecError, "queues.red.quota.*"),
        ("vision", {"quota": {"cpu": -1}}, SpecError, "queues.vision.quota.cpu"),
        ("vision", {"limit": {"cpu": 2}}, SpecError, "queues.vision.quota.cpu"),
        ("vision", {"weight": -1.0}, SpecError, "queues.vision.weight"),
        ("vision", {}, SpecError, "body"),
        ("celled", {"quota": {"cpu": 1}}, Conflict, "quota"),
    ],
)
def test_what_is_not_theirs_to_give_is_refused(queue: str, share: dict[str, object], error: type[SpecError], field: str) -> None:
    with pytest.raises(error) as refused:
        parted(POLICY, queue, asked(**share), RITA)
    assert refused.value.field == field


def test_without_a_quota_of_its_own_a_team_gains_nothing() -> None:
    """What is guaranteed to its queues is all that it has: another type, or more of one, would be somebody else's."""
    loose = parse_policy(
        {"queues": {"red": {"team": "red"}, "one": {"parent": "red", "quota": {"cpu": 2}}, "two": {"parent": "red"}}}
    )
    for queue, share in (("two", {"cpu": 1}), ("one", {"cpu": 3}), ("two", {"H100": 1}), ("two", {"*": 1})):
        with pytest.raises(SpecError, match="is guaranteed, which was given"):
            parted(loose, queue, asked(quota=share), RITA)
    assert parted(loose, "one", asked(quota={}), RITA).queues["one"].quota == {}
    assert parted(loose, "two", asked(quota={"cpu": 1}), BUILT_IN).queues["two"].quota == {"cpu": 1}


def test_a_member_and_a_token_of_less_scope_may_not() -> None:
    for person in (Person(user="rob", token="t", roles={"red": "member"}), Person(user="bea", token="t", roles={"blue": "admin"})):
        with pytest.raises(Forbidden, match="takes an admin of team red"):
            parted(POLICY, "vision", asked(weight=2.0), person)


def test_the_highest_queue_of_a_team_is_where_its_word_ends() -> None:
    assert [highest(POLICY, name) for name in ("deep", "vision", "red", "below", "all")] == ["red", "red", "red", "blue", "all"]


COUNTS = st.dictionaries(st.sampled_from(["cpu", "H100", "*"]), st.integers(0, 6), max_size=2)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["vision", "deep", "speech"]), COUNTS), max_size=6))
def test_whatever_a_team_asks_nobody_is_guaranteed_more_than_before(asks: list[tuple[str, dict[str, int]]]) -> None:
    policy: Policy = POLICY
    for queue, quota in asks:
        try:
            policy = parted(policy, queue, asked(quota=quota), RITA)
        except SpecError:
            continue
        for top in ("red", "blue", "cells", "all"):
            known = guaranteed(POLICY, top)
            assert all(count <= known.get(kind, 0) for kind, count in guaranteed(policy, top).items())


def test_it_goes_through_the_api_with_its_row_and_its_tag(tmp_path: Path) -> None:
    queues = {
        "red": {"team": "red", "quota": {"cpu": 4}},
        "vision": {"parent": "red"},
        "blue": {"team": "blue"},
        "b": {"parent": "blue"},
    }
    with served(tmp_path / "home") as one:
        with one.http() as http:
            for team in ("red", "blue"):
                assert http.post("/api/v1/teams", json={"team": team, "trusting": True}).status_code == 201
            assert http.post("/api/v1/users", json={"user": "rita"}).status_code == 201
            http.put("/api/v1/teams/red/members/rita", json={"role": "admin"})
            token = http.post("/api/v1/tokens", json={"name": "test", "user": "rita", "scope": "admin"}).json()["token"]
            assert http.put("/api/v1/policy", json={"policy": {"queues": queues}}).status_code == 200, queues
        with one.http(token) as http:
            seen = http.get("/api/v1/policy").headers["etag"]
            answer = http.patch("/api/v1/queues/vision", json={"quota": {"cpu": 3}}, headers={"If-Match": seen})
            assert answer.status_code == 200, answer.text
            assert answer.json()["policy"]["queues"] == {"red": queues["red"], "vision": {"parent": "red", "quota": {"cpu": 3}}}
            stale = http.patch("/api/v1/queues/vision", json={"weight": 2.0}, headers={"If-Match": seen})
            assert stale.status_code == 412
            assert http.patch("/api/v1/queues/vision", json={"quota": {"cpu": 5}}).status_code == 422
            assert http.patch("/api/v1/queues/vision", json={"quota": {"cpu": True}}).status_code == 422
            for hidden in ("b", "none"):
                answer = http.patch(f"/api/v1/queues/{hidden}", json={"weight": 2.0})
                assert (answer.status_code, answer.json()["fix"]) == (
                    404,
                    "no such queue in the policy; `phalanx policy show` has them",
                )
        policy = one.bench.world.policy
        assert (policy.queues["vision"].quota, policy.queues["vision"].weight) == ({"cpu": 3}, 1.0)
        with one.http() as http:
            rows = [row for row in http.get("/api/v1/audit").json() if row["what"] == "queue.part"]
    assert [(row["by"], row["on"], row["outcome"]) for row in rows] == [("rita", "vision", "done")]
