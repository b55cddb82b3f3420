"""`policy show`: what is in force, and with `--all` every default too."""

import yaml

from phalanx.core.policy import DEFAULT
from phalanx.core.policy_parse import parse_policy
from phalanx.core.views import PolicyView
from tests.show.cli.terminal import Terminal


def test_show_leaves_out_what_nobody_set_and_all_shows_it(terminal: Terminal) -> None:
    terminal.server.view("/policy", PolicyView, PolicyView(policy={}))
    assert terminal("policy", "show").out == "{}  # the default policy; --all shows it\n"
    shown = yaml.safe_load(terminal("policy", "show", "--all").out)
    assert (shown["half_life"], shown["preemption"]["max_victims"], shown["heads"]) == ("7d", 64, 1)
    assert parse_policy(shown) == DEFAULT
    terminal.server.view("/policy", PolicyView, PolicyView(policy={"queues": {"a": {"budget": {"money": 5}}}}))
    assert yaml.safe_load(terminal("policy", "show", "--all").out)["queues"]["a"]["budget"] == {
        "money": 5.0, "period": "month", "at": "stop",
    }  # fmt: skip
