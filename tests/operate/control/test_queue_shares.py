"""A team's admin parts what the team was given: never more, nothing of others, and nothing but three numbers."""

import math
import threading
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from phalanx.core.errors import Conflict, Forbidden, SpecError
from phalanx.core.people import BUILT_IN, Person
from phalanx.core.policy import Policy
from phalanx.core.policy_parse import parse_policy
from phalanx.core.policy_rules import guaranteed
from phalanx.core.use_views import QueueShareRequest
from phalanx.operate.control import queue_shares
from phalanx.operate.control.api import sharing
from phalanx.operate.control.queue_shares import highest, parted
from tests.drawn import examples
from tests.operate.control.control_bench import Bench
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
        ("vision", {"quota": {"cpu": 3, "H100": 3}}, SpecError, "queues.red.quota.*"),
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
    with pytest.raises(SpecError, match="cannot be left out"):
        parted(loose, "one", asked(quota={}), RITA)
    assert parted(loose, "one", asked(quota={"cpu": 0}), RITA).queues["one"].quota == {"cpu": 0}
    assert parted(loose, "two", asked(quota={"cpu": 1}), BUILT_IN).queues["two"].quota == {"cpu": 1}


def test_a_member_and_a_token_of_less_scope_may_not() -> None:
    for person in (Person(user="rob", token="t", roles={"red": "member"}), Person(user="bea", token="t", roles={"blue": "admin"})):
        with pytest.raises(Forbidden, match="takes an admin of team red"):
            parted(POLICY, "vision", asked(weight=2.0), person)


def test_the_highest_queue_of_a_team_is_where_its_word_ends() -> None:
    assert [highest(POLICY, name) for name in ("deep", "vision", "red", "below", "all")] == ["red", "red", "red", "blue", "all"]


LOOSE = parse_policy(
    {
        "queues": {
            "red": {"team": "red"},
            "vision": {"parent": "red", "limit": {"cpu": 3}},
            "deep": {"parent": "vision", "quota": {"cpu": 2}, "borrow": False},
            "wide": {"parent": "vision", "quota": {"cpu": 1}},
            "speech": {"parent": "red", "limit": {"*": 3, "H100": 1}},
            "far": {"parent": "speech", "quota": {"*": 2}, "borrow": False},
        }
    }
)
"""What the platform gave stands below the highest queue alone."""

BELOW = ("vision", "deep", "wide", "speech", "far")


@pytest.mark.parametrize(
    ("queue", "share", "field"),
    [
        ("vision", {"limit": {}}, "limit.cpu"),
        ("vision", {"limit": {"cpu": 4}}, "limit.cpu"),
        ("vision", {"limit": {"*": 4}}, "limit.cpu"),
        ("speech", {"limit": {"H100": 1}}, "limit.*"),
        ("speech", {"limit": {"*": 3}}, "limit.H100"),
        ("speech", {"limit": {"*": 3, "H100": 1, "L4": 1}}, "limit.*"),
        ("deep", {"quota": {}}, "quota.cpu"),
        ("far", {"quota": {"*": 3}}, "quota.*"),
    ],
)
def test_a_cap_below_a_highest_queue_without_one_is_the_platforms(queue: str, share: dict[str, object], field: str) -> None:
    with pytest.raises(SpecError) as refused:
        parted(LOOSE, queue, asked(**share), RITA)
    assert refused.value.field == field


def test_a_limit_that_the_team_wrote_above_lets_nothing_through() -> None:
    policy = parse_policy(
        {"queues": {"red": {"team": "red"}, "mid": {"parent": "red"}, "one": {"parent": "mid", "limit": {"cpu": 2}}}}
    )
    policy = parted(policy, "mid", asked(limit={"cpu": 1_000}), RITA)
    with pytest.raises(SpecError, match="raised where red has a limit"):
        parted(policy, "one", asked(limit={}), RITA)


def test_within_the_highest_queues_own_limit_a_team_moves_its_caps() -> None:
    policy = parse_policy(
        {"queues": {"red": {"team": "red", "limit": {"cpu": 6}}, "one": {"parent": "red", "limit": {"cpu": 2, "H100": 1}}}}
    )
    assert parted(policy, "one", asked(limit={"H100": 1}), RITA).queues["one"].limit == {"H100": 1}
    with pytest.raises(SpecError, match="raised where red has a limit"):
        parted(policy, "one", asked(limit={"cpu": 6}), RITA)


def test_what_is_not_lent_does_not_grow() -> None:
    """Others live of what stands idle: it would be theirs no more."""
    queues = {"one": {"parent": "red", "quota": {"cpu": 3}}, "kept": {"parent": "red", "quota": {"cpu": 0}, "lend": False}}
    policy = parse_policy({"queues": {"red": {"team": "red", "quota": {"cpu": 4}}, "in": {"parent": "kept"}, **queues}})
    for queue in ("kept", "in"):
        with pytest.raises(SpecError, match="kept lends nothing") if queue == "kept" else pytest.raises(SpecError):
            parted(policy, queue, asked(quota={"cpu": 1}), RITA)


def test_what_others_are_guaranteed_is_told_by_no_refusal() -> None:
    queues = {"all": {"quota": {"cpu": 7}}, "red": {"parent": "all", "team": "red"}, "one": {"parent": "red", "quota": {"cpu": 1}}}
    policy = parse_policy({"queues": {**queues, "blue": {"parent": "all", "team": "blue", "quota": {"cpu": 5}}}})
    with pytest.raises(SpecError) as refused:
        parted(policy, "one", asked(quota={"cpu": 6}), RITA)
    assert (refused.value.field, "11" in refused.value.fix) == ("quota.cpu", False)


def test_what_stood_wrong_elsewhere_blocks_no_change_of_a_teams_own() -> None:
    blue = replace(POLICY.queues["blue"], quota={"cpu": 2}, limit={"cpu": 1})
    wrong = replace(POLICY, queues={**POLICY.queues, "blue": blue})
    assert parted(wrong, "vision", asked(quota={"cpu": 1}), RITA).queues["vision"].quota == {"cpu": 1}


def most(policy: Policy, queue: str, kinds: frozenset[str], with_quota: bool) -> float:
    """How many of these types it may hold: by the limits along its chain, and the quotas of those that may not borrow."""
    found = math.inf
    while queue:
        one = policy.queues[queue]
        for caps in (one.limit, one.quota if with_quota and not one.borrow else {}):
            entries = {kind if kind in caps else "*" for kind in kinds}
            found = min(found, sum(caps.get(entry, math.inf) for entry in entries))
        queue = one.parent
    return found


COUNTS = st.dictionaries(st.sampled_from(["cpu", "H100", "*"]), st.integers(0, 4), max_size=3)
ASKS = st.tuples(st.sampled_from(BELOW), st.sampled_from(["quota", "limit"]), COUNTS)
KINDS = [frozenset(some) for size in (1, 2, 3) for some in combinations(("cpu", "H100", "L4"), size)]


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(ASKS, max_size=6))
@example([("vision", "limit", {})])
@example([("deep", "quota", {})])
@example([("wide", "quota", {"cpu": 2})])
def test_whatever_a_team_asks_it_can_take_no_more_than_before(asks: list[tuple[str, str, dict[str, int]]]) -> None:
    policy = LOOSE
    for queue, field, counts in asks:
        try:
            policy = parted(policy, queue, asked(**{field: counts}), RITA)
        except SpecError:
            continue
    known = guaranteed(LOOSE, "red")
    assert all(count <= known.get(kind, 0) for kind, count in guaranteed(policy, "red").items())
    for queue, kinds in product(BELOW, KINDS):
        assert most(policy, queue, kinds, with_quota=False) <= most(LOOSE, queue, kinds, with_quota=False)
        given_them = sum(known.get(entry, 0) for entry in {kind if kind in known else "*" for kind in kinds})
        assert most(policy, queue, kinds, with_quota=True) <= max(most(LOOSE, queue, kinds, with_quota=True), given_them)


def test_the_property_sees_what_would_not_be_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_shares, "_check_given", lambda *_: None)
    with pytest.raises(AssertionError):
        test_whatever_a_team_asks_it_can_take_no_more_than_before()


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


RED = {"red": {"team": "red", "quota": {"cpu": 4}}, "vision": {"parent": "red"}}


def test_it_is_worked_out_anew_when_the_policy_has_changed_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the control thread; of the other change nothing is lost, and who is never quick enough is told so."""
    original = queue_shares.parted
    with served(tmp_path / "home") as one, one.http() as http:
        assert http.post("/api/v1/teams", json={"team": "red", "trusting": True}).status_code == 201
        assert http.put("/api/v1/policy", json={"policy": {"queues": RED}}).status_code == 200
        threads, always = list[bool](), False

        def raced(*args: Any) -> Policy:
            found = original(*args)
            threads.append(threading.current_thread().name.startswith("control"))
            if always or len(threads) == 1:
                one.bench.control.set_policy(replace(args[0], half_life=f"{len(threads)}d"), "ada")
            return found

        monkeypatch.setattr(sharing, "parted", raced)
        assert http.patch("/api/v1/queues/vision", json={"weight": 2.0}).status_code == 200
        policy = one.bench.world.policy
        assert (policy.queues["vision"].weight, policy.half_life, threads) == (2.0, "1d", [False, False])
        always = True
        answer = http.patch("/api/v1/queues/vision", json={"weight": 3.0})
        assert (answer.status_code, answer.json()["field"], len(threads)) == (409, "policy", 2 + sharing.TRIES)


def test_a_fleet_that_became_too_small_blocks_no_team(bench: Bench) -> None:
    """What the platform's policy promises too much is the platform's to mend."""
    policy = parse_policy({"queues": {**RED, "blue": {"team": "blue", "quota": {"cpu": 9}}}})
    bench.control.set_policy(policy, "ada")
    bench.add("a")
    bench.tick()
    found = parted(policy, "vision", asked(weight=2.0), RITA)
    with pytest.raises(SpecError):
        bench.control.set_policy(found, "rita")
    bench.control.part_policy(found, "rita")
    assert bench.world.policy == found
