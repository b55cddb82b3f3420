"""node ls, drain, undrain, and how status shows a drained node."""

import json

import pytest

from phalanx.core import wire
from phalanx.core.errors import Exit
from phalanx.core.ids import AttemptId
from phalanx.core.isolation import MEMORY, MOUNTS, UIDS, Isolation
from phalanx.core.views import DrainRequest, NodeView, StatusView
from phalanx.show.cli.pages import nodes_page
from tests.recorded import JOB, node_view, refusal, said, status_view
from tests.show.cli.terminal import Terminal
from tests.show.cli.test_grid import drawn

DRAINED = node_view(drained="a fan is loud", features=("lock", "secrets"))
IDLE = node_view(node="node-b", drained="a fan is loud", held={})


def test_ls_shows_state_devices_features_and_why(terminal: Terminal) -> None:
    nodes = (node_view(), DRAINED, node_view(state="away"), node_view(state="away", drained="gone"))
    terminal.server.view("/nodes", tuple[NodeView, ...], nodes)
    lines = terminal("node", "ls").out.splitlines()
    assert lines[0].split() == ["NODE", "STATE", "DEVICES", "HELD", "FEATURES", "ADDRESS", "SEEN", "(UTC)", "DRAINED"]
    assert lines[1].split()[:6] == ["node-a", "up", "2", "x", "CPU", "slot"]
    assert "1/2" in lines[1] and lines[1].endswith("-")
    assert "drained" in lines[2] and "lock, secrets" in lines[2] and lines[2].endswith("a fan is loud")
    assert [line.split("2 x")[0].split(maxsplit=1)[1].strip() for line in lines[1:]] == ["up", "drained", "away", "away, drained"]
    assert json.loads(terminal("node", "ls", "-o", "json").out) == wire.plain(tuple[NodeView, ...], nodes)


def test_an_empty_fleet_says_what_to_do(terminal: Terminal) -> None:
    terminal.server.view("/nodes", tuple[NodeView, ...], ())
    assert "`phalanx agent join`" in terminal("node", "ls").out


@pytest.mark.parametrize("width", [80, 100, 120])
def test_a_node_is_a_line_on_any_terminal(width: int) -> None:
    lines = drawn(width, *nodes_page((node_view(drained="a long story to tell " * 9, features=("lock", "image", "secrets")),)))
    assert len([line for line in lines if line.startswith("node-a")]) == 1
    assert all(line.startswith(("NODE", "node-a", "(no room")) for line in lines)


@pytest.mark.parametrize(
    ("view", "line"),
    [
        (DRAINED, "node-a is drained (a fan is loud): nothing new is placed on it; 1 attempt still there."),
        (IDLE, "node-b is drained (a fan is loud): nothing new is placed on it; nothing runs there."),
        (
            node_view(drained="x", held={0: AttemptId(f"{JOB}.1"), 1: AttemptId(f"{JOB}.1")}, state="away"),
            "node-a is drained (x): nothing new is placed on it; 1 attempt still there. It is away now.",
        ),
    ],
)
def test_drain_says_what_is_left_there(terminal: Terminal, view: NodeView, line: str) -> None:
    terminal.server.on("POST", "/nodes/node-a/drain", said(NodeView, view))
    shown = terminal("node", "drain", "node-a", "--reason", "a fan is loud", "--now")
    assert (shown.code, shown.out) == (0, f"{line}\n")
    assert wire.loads(DrainRequest, terminal.server.asked[0].body) == DrainRequest(reason="a fan is loud", now=True)


def test_undrain_says_that_it_is_back(terminal: Terminal) -> None:
    terminal.server.on("POST", "/nodes/node-a/undrain", said(NodeView, node_view()))
    assert terminal("node", "undrain", "node-a").out == "node-a may be given work again.\n"
    assert json.loads(terminal("node", "undrain", "node-a", "-o", "json").out)["drained"] == ""


def test_a_drain_without_a_reason_says_so_to_whoever_looks(terminal: Terminal) -> None:
    terminal.server.on("POST", "/nodes/node-a/drain", said(NodeView, DRAINED))
    assert terminal("node", "drain", "node-a", "--now").code == 0
    assert wire.loads(DrainRequest, terminal.server.asked[0].body) == DrainRequest(reason="no reason given", now=True)


def test_a_node_that_is_none_is_not_asked_for(terminal: Terminal) -> None:
    assert terminal("node", "drain", "../x", "--reason", "y").code == 4
    terminal.server.on("POST", "/nodes/none/undrain", refusal(404, "node", "none", "no such node", title="NotFound"))
    unknown = terminal("node", "undrain", "none")
    assert (unknown.code, unknown.err) == (4, "Error: node is 'none': no such node\n")


def test_status_shows_a_drained_node(terminal: Terminal) -> None:
    terminal.server.view("/status", StatusView, status_view(nodes=(DRAINED,)))
    assert terminal("status").out.splitlines()[-1].split()[:7] == ["node-a", "drained", "2", "x", "CPU", "slot", "1/2"]


def test_describe_shows_what_a_node_allows_for_keeping_jobs_apart(terminal: Terminal) -> None:
    told = Isolation("uid", (UIDS, MOUNTS), {MEMORY: "the controller memory is not given"})
    nodes = (node_view(isolation=told), node_view(node="node-b"))
    terminal.server.view("/nodes", tuple[NodeView, ...], nodes)
    lines = terminal("node", "describe", "node-a").out.splitlines()
    facts = {line[:30].split("  ")[0]: line.split("  ")[-1].strip() for line in lines}
    assert facts["Isolation"] == "uid" and facts["Users of their own"] == "yes" and facts["PID namespaces"] == "no: not tried"
    assert facts["Bounds on memory"] == "no: the controller memory is not given"
    assert "not told by its agent" in terminal("node", "describe", "node-b").out
    assert wire.loads(NodeView, terminal("node", "describe", "node-a", "-o", "json").out) == nodes[0]
    refused = terminal("node", "describe", "node-z")
    assert refused.code == Exit.NOT_FOUND and "phalanx node ls" in refused.err


def test_status_says_whether_jobs_are_kept_apart(terminal: Terminal) -> None:
    terminal.server.view("/status", StatusView, status_view(trust="single trust domain: node-a does not keep jobs apart"))
    assert "single trust domain: node-a" in terminal("status").out
    terminal.server.view("/status", StatusView, status_view())
    assert "Trust" not in terminal("status").out
