"""agent token, join, revoke."""

import json
import stat
from pathlib import Path

import pytest

from phalanx.core import wire
from phalanx.core.views import JoinTokenRequest, JoinTokenView
from tests.recorded import Said, refusal, said
from tests.show.cli.terminal import Terminal

VIEW = JoinTokenView(token="t0k" * 15, expires_ms=3_600_000)


@pytest.fixture
def phalanx(terminal: Terminal) -> Terminal:
    terminal.server.on("POST", "/agent/tokens", said(JoinTokenView, VIEW, 201))
    return terminal


def test_a_token_is_all_that_stands_on_standard_output(phalanx: Terminal) -> None:
    shown = phalanx("agent", "token", "--expires", "2h")
    assert (shown.code, shown.out) == (0, f"{VIEW.token}\n")
    assert shown.err == (
        f"Good for one node until 1970-01-01 01:00:00 UTC: `phalanx agent join {phalanx.server.url} --token-file FILE`\n"
    )
    assert wire.loads(JoinTokenRequest, phalanx.server.asked[0].body) == JoinTokenRequest(lifetime_ms=7_200_000)
    assert json.loads(phalanx("agent", "token", "-o", "json").out) == wire.plain(JoinTokenView, VIEW)


def test_a_token_in_a_file_is_private_and_not_on_the_screen(phalanx: Terminal, tmp_path: Path) -> None:
    file = tmp_path / "rack2.token"
    shown = phalanx("agent", "token", "--out", str(file))
    assert (shown.code, shown.out, file.read_text()) == (0, "", f"{VIEW.token}\n")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert str(file) in shown.err and VIEW.token not in shown.err
    again = phalanx("agent", "token", "--out", str(file), "-o", "json")
    assert (again.code, again.out) == (2, "")
    assert again.err == f"Error: --out is {str(file)!r}: is there already; name a new file\n"
    assert len(phalanx.server.asked) == 1, "no token was made that nobody can have"
    other = phalanx("agent", "token", "--out", str(tmp_path / "other"), "-o", "json")
    assert json.loads(other.out) == {"file": str(tmp_path / "other"), "expires_ms": VIEW.expires_ms}


def test_a_refused_token_leaves_no_file(phalanx: Terminal, tmp_path: Path) -> None:
    phalanx.server.on("POST", "/agent/tokens", refusal(422, "lifetime_ms", "1", "choose more", title="SpecError"))
    shown = phalanx("agent", "token", "--out", str(tmp_path / "file"))
    assert (shown.code, (tmp_path / "file").exists()) == (2, False)
    assert phalanx("agent", "token", "--out", str(tmp_path / "no" / "file")).err.startswith("Error: --out is")


@pytest.mark.parametrize("expires", ["soon", "0s", "", "999ms", "31d"])
def test_a_token_for_no_time_is_refused_before_anything_is_asked(phalanx: Terminal, expires: str) -> None:
    shown = phalanx("agent", "token", "--expires", expires)
    assert (shown.code, phalanx.server.asked) == (2, [])
    assert shown.err.startswith("Error: --expires is")


def test_join_says_as_whom_and_runs_the_agent(phalanx: Terminal, tmp_path: Path) -> None:
    shown = phalanx("agent", "join", "http://127.0.0.1:8720/", "--token-file", str(tmp_path / "t"), "--name", "b")
    assert (shown.code, shown.out) == (0, "")
    assert shown.err.startswith("This is node b of http://127.0.0.1:8720. Ctrl-C stops the agent and leaves its ranks alone")
    code = phalanx("agent", "join", "https://far.example", "--token-file", "t", "--cpu-slots", "70").code
    assert code == 70, "the agent's exit code is the command's"


@pytest.mark.parametrize(
    ("url", "fix"),
    [
        ("http://10.0.0.1:8720", "use https, or a tunnel"),
        ("http://far.example", "use https, or a tunnel"),
        ("ftp://127.0.0.1", "write http://HOST:PORT or https://HOST"),
        ("127.0.0.1:8720", "write http://HOST:PORT or https://HOST"),
        ("http://127.0.0.1:x", "is not a URL"),
        ("http://127.0.0.1:1?a=b", "write the address alone"),
    ],
)
def test_an_address_to_which_a_token_would_travel_readable_is_refused(phalanx: Terminal, url: str, fix: str) -> None:
    shown = phalanx("agent", "join", url, "--token-file", "t")
    assert (shown.code, shown.out) == (2, "")
    assert shown.err.startswith(f"Error: URL is {url!r}: ") and fix in shown.err


def test_a_refused_join_is_one_error(phalanx: Terminal) -> None:
    shown = phalanx("agent", "join", "http://127.0.0.1:1")
    assert (shown.code, shown.err) == (2, "Error: --token-file: this home has not joined yet\n")


def test_revoke_says_what_it_did(phalanx: Terminal) -> None:
    phalanx.server.on("DELETE", "/agent/credentials/rack2", Said(204))
    shown = phalanx("agent", "revoke", "rack2")
    assert (shown.code, shown.out) == (0, "")
    assert shown.err.startswith("rack2 is shut out")
    assert phalanx("agent", "revoke", "../x").code == 4
