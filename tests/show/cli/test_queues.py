"""`queue ls`: what people read."""

from phalanx.core.views import QueueView
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
