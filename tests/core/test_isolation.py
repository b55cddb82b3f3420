"""Who may share a platform, by what its nodes say."""

import pytest

from phalanx.core import wire
from phalanx.core.devices import NodeShape
from phalanx.core.ids import NodeId
from phalanx.core.isolation import MEANS, NEEDED, Isolation, keeps_apart, may_host, trust

APART = Isolation("uid", NEEDED, {})
OPEN = Isolation("none", NEEDED, {})
UNABLE = Isolation("none", (), dict.fromkeys(NEEDED, "Operation not permitted"))


@pytest.mark.parametrize("isolation", [None, OPEN, UNABLE, Isolation("uid", NEEDED[1:], {NEEDED[0]: "no"})])
def test_a_second_team_is_refused_where_a_node_does_not_keep_jobs_apart(isolation: Isolation | None) -> None:
    assert not keeps_apart(isolation)
    assert may_host(1, {"a": isolation}) is None
    why = may_host(2, {"a": APART, "b": isolation})
    assert why is not None and "2 teams cannot share" in why and "single trust domain: b" in why and "--isolation uid" in why


def test_several_teams_may_share_nodes_that_all_keep_jobs_apart() -> None:
    assert may_host(7, {"a": APART, "b": APART}) is None
    assert trust({"a": APART}).startswith("jobs are kept apart")


def test_a_platform_without_nodes_is_not_taken_for_one_that_keeps_jobs_apart() -> None:
    assert trust({}) == "single trust domain: no node has joined"
    assert may_host(2, {}) is not None


def test_what_is_missing_is_named() -> None:
    words = trust({"node-a": UNABLE, "node-b": OPEN, "node-c": None})
    assert words.startswith("single trust domain: node-a, nor 2 others cannot keep jobs apart: no users of their own (Operation")
    assert all(f"no {MEANS[name]}" in UNABLE.why_not() for name in NEEDED)
    assert "does not say" in trust({"node-c": None})


def test_a_shape_of_an_older_agent_has_none() -> None:
    shape = NodeShape(NodeId("a"), "127.0.0.1", (), 1.0, 1, (1, 2))
    old = wire.dumps(NodeShape, shape).replace(',"isolation":null', "")
    assert "isolation" not in old and wire.loads(NodeShape, old) == shape
    newer = NodeShape(NodeId("a"), "127.0.0.1", (), 1.0, 1, (1, 2), (), UNABLE)
    assert wire.loads(NodeShape, wire.dumps(NodeShape, newer)) == newer
