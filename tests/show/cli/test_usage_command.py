"""`usage`, `webhook ls` and `webhook redeliver`: what people read, and what is asked."""

import dataclasses

from phalanx.core.ids import JobId
from phalanx.core.use_views import DeliveryView, EndedDeliveryView, UsageView
from tests.recorded import Said, said
from tests.show.cli.terminal import Terminal

HOUR = 1000 * 3_600_000
ROWS = (
    UsageView(name="small-1", queue="default", user="ada", attempts=1, allocated=HOUR // 2, used=0),
    UsageView(name="large-2", queue="research", user="bob", attempts=3, allocated=8 * HOUR, used=6 * HOUR),
)
DELIVERY = DeliveryView(id=7, job=JobId("large-2"), event=40, occasion="finished", host="hooks.example", at_ms=1, tries=2, due_ms=1)


def test_usage_shows_who_had_the_most_first(terminal: Terminal) -> None:
    terminal.server.view("/usage", tuple[UsageView, ...], ROWS)
    out = terminal("usage", "--by", "job").out
    assert out.index("large-2") < out.index("small-1")
    assert "75 %" in out
    assert "bob" in out
    assert terminal.server.asked[-1].query["by"] == "job"
    assert int(terminal.server.asked[-1].query["since_ms"]) > 0
    assert terminal("usage", "--csv").out.splitlines() == [
        "name,queue,user,attempts,allocated,used",
        f"small-1,default,ada,1,{HOUR // 2},0",
        f"large-2,research,bob,3,{8 * HOUR},{6 * HOUR}",
    ]


def test_usage_of_nothing_says_so(terminal: Terminal) -> None:
    terminal.server.view("/usage", tuple[UsageView, ...], ())
    assert "Nothing held a device" in terminal("usage").out


def test_deliveries_are_listed_and_sent_again(terminal: Terminal) -> None:
    terminal.server.view("/webhooks/deliveries", tuple[DeliveryView, ...], (DELIVERY,))
    out = terminal("webhook", "ls").out
    assert "hooks.example" in out
    assert "now" in out
    terminal.server.on("POST", "/webhooks/deliveries/7/redeliver", said(DeliveryView, DELIVERY, 202))
    assert "What large-2 has to tell hooks.example is sent again now." in terminal("webhook", "redeliver", "7").out
    terminal.server.on("POST", "/webhooks/deliveries/8/redeliver", Said(404))
    assert terminal("webhook", "redeliver", "8").code != 0


def test_what_became_of_deliveries_is_listed(terminal: Terminal) -> None:
    accepted = EndedDeliveryView(
        id=7, job=JobId("large-2"), event=40, occasion="finished", host="hooks.example", at_ms=1, tries=2, ended_ms=2_000,
        outcome="accepted", detail="",
    )  # fmt: skip
    lost = dataclasses.replace(accepted, id=6, outcome="given_up", detail="it answered 500")
    terminal.server.view("/webhooks/history", tuple[EndedDeliveryView, ...], (accepted, lost))
    first, second = terminal("webhook", "history", "--limit", "9").out.splitlines()[1:]
    assert first.split()[:5] == ["7", "large-2", "finished", "hooks.example", "2"] and "accepted" in first
    assert "given up" in second and "it answered 500" in second
    assert terminal.server.asked[-1].query == {"limit": "9"}
    terminal.server.view("/webhooks/history", tuple[EndedDeliveryView, ...], ())
    assert "Nothing was accepted by a webhook yet" in terminal("webhook", "history").out
