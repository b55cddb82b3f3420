"""`queue ls` and `queue part`: what people read, and what is asked."""

import json

import pytest

from phalanx.core.views import PolicyView, QueueView
from tests.recorded import said
from tests.show.cli.terminal import Terminal


def test_small_budgets_and_large_ones_are_shown_with_their_digits(terminal: Terminal) -> None:
    small = QueueView(
        name="b", parent="", weight=1.0, running=0, waiting=1, held={}, quota={}, limit={}, borrowed={}, used_hours=0.016612,
        spent_hours=0.016612, spent_usd=0.0031, budget={"gpu_hours": 0.01, "money": 1_234_567.5, "period": "month"},
    )  # fmt: skip
    terminal.server.view("/queues", tuple[QueueView, ...], (small,))
    out = terminal("queue", "ls").out
    assert "0.01661 of 0.01 h, 0.0031 of 1234567.5 USD in the month" in out
    assert "  0.01661  " in out


def test_a_queue_gets_its_new_share(terminal: Terminal) -> None:
    terminal.server.on("PATCH", "/queues/vision", said(PolicyView, PolicyView(policy={}, warnings=(), tag="")))
    out = terminal("queue", "part", "vision", "--quota", "H100:8, A100-1g.5gb:4", "--limit", "").out
    assert "Queue vision has its new share" in out
    sent = json.loads(terminal.server.asked[-1].body)
    assert sent == {"weight": None, "quota": {"H100": 8, "A100-1g.5gb": 4}, "limit": {}}


@pytest.mark.parametrize("quota", ["H100", "H100:", ":8", "H100:-1", "H100:x", "H100:1,H100:2", "H100:²"])
def test_a_share_that_is_none_is_not_sent(terminal: Terminal, quota: str) -> None:
    refused = terminal("queue", "part", "vision", "--quota", quota)
    assert (refused.code, "--quota" in refused.err) == (2, True)
    assert terminal("queue", "part", "vision").code == 2
    assert terminal.server.asked == []
