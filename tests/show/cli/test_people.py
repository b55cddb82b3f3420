"""user, team, token, login, logout, whoami, audit: what they send and show; a token stands nowhere but on standard output."""

import io
import json
from pathlib import Path

import pytest

from phalanx.client import connect
from phalanx.client.login import keep_login
from phalanx.core import wire
from phalanx.core.errors import Conflict, SetupError
from phalanx.core.people import AuditView, MadeTokenView, TeamView, TokenView, UserView, WhoView
from tests.recorded import Said, refusal, said
from tests.show.cli.terminal import Terminal

TOKEN = "phx_" + "t" * 43
ADA = WhoView(
    user="ada",
    platform=False,
    teams={"red": "member"},
    token="0a1b2c",
    scope="submit",
    team="",
    expires_ms=1000,
    organisation="Lab",
)
VIEW = TokenView(
    id="0a1b2c", name="laptop", user="ada", scope="submit", team="", created_ms=0, expires_ms=1000, used_ms=None
)  # fmt: skip


def sent(terminal: Terminal) -> list[tuple[str, str, object]]:
    return [(one.method, one.path, json.loads(one.body) if one.body else None) for one in terminal.server.asked]


def test_accounts_are_made_changed_and_removed(terminal: Terminal) -> None:
    user, team = UserView(user="ada", platform=False, teams={}, created_ms=0), TeamView(team="red", members={}, created_ms=0)
    terminal.server.on("POST", "/users", said(UserView, user, 201))
    terminal.server.on("POST", "/teams", said(TeamView, team, 201))
    terminal.server.on("PUT", "/teams/red/members/ada", said(TeamView, team))
    for path in ("/teams/red/members/ada", "/teams/red", "/users/ada"):
        terminal.server.on("DELETE", path, Said(204))
    assert "`phalanx team add TEAM ada`" in terminal("user", "create", "ada").err
    assert terminal("team", "create", "red").code == 0
    assert terminal("team", "add", "red", "ada", "--role", "admin").err == "ada is an admin of red from now on.\n"
    assert [
        terminal(*words).code for words in (("team", "remove", "red", "ada"), ("team", "rm", "red"), ("user", "rm", "ada"))
    ] == [0] * 3
    assert terminal("team", "add", "red", "ada", "--role", "root").code == 2
    assert terminal("user", "rm", "../x").code == 2
    assert [body for _, _, body in sent(terminal)] == [
        {"user": "ada", "platform": False}, {"team": "red", "trusting": False}, {"role": "admin"}, None, None, None,
    ]  # fmt: skip


def test_lists_show_roles(terminal: Terminal) -> None:
    users = (UserView(user="ada", platform=True, teams={"red": "admin", "blue": "viewer"}, created_ms=1000),)
    terminal.server.view("/users", tuple[UserView, ...], users, ())
    terminal.server.view("/teams", tuple[TeamView, ...], (TeamView(team="red", members={"ada": "admin"}, created_ms=1000),), ())
    assert "ada   yes             blue (viewer), red (admin)  1970-01-01 00:00:01" in terminal("user", "ls").out
    assert "`phalanx user create USER`" in terminal("user", "ls").out
    assert "red   ada (admin)" in terminal("team", "ls").out
    assert "`phalanx team create TEAM`" in terminal("team", "ls").out


def test_a_token_is_alone_on_standard_output(terminal: Terminal) -> None:
    terminal.server.on("POST", "/tokens", said(MadeTokenView, MadeTokenView(token=TOKEN, view=VIEW), 201))
    shown = terminal("token", "create", "laptop", "--expires", "90d", "--scope", "read", "--team", "red")
    assert (shown.code, shown.out) == (0, f"{TOKEN}\n")
    assert TOKEN not in shown.err and "0a1b2c" in shown.err
    assert sent(terminal)[-1][2] == {"name": "laptop", "user": "", "scope": "read", "team": "red", "lifetime_ms": 90 * 86_400_000}
    for expires in ("366d", "1s", "soon", ""):
        assert terminal("token", "create", "laptop", "--expires", expires).code == 2
    terminal.server.view("/tokens", tuple[TokenView, ...], (VIEW,))
    assert "0a1b2c  laptop  ada   submit  -     1970-01-01 00:00:01  -" in terminal("token", "ls").out
    terminal.server.on("DELETE", "/tokens/0a1b2c", Said(204))
    assert terminal("token", "revoke", "0a1b2c").err == "Token 0a1b2c opens nothing any more.\n"
    assert terminal("token", "revoke", "../users").code == 4


def test_whoami_says_what_one_may(terminal: Terminal) -> None:
    nobody = WhoView(user="noa", platform=False, teams={}, token="x", scope="read", team="", expires_ms=None, organisation="")
    terminal.server.view("/whoami", WhoView, ADA, nobody, ADA)
    out = terminal("whoami").out
    assert "red (member)" in out and "scope submit" in out and ", Lab" in out
    assert "an admin has to put you into a team" in terminal("whoami").out
    assert json.loads(terminal("whoami", "-o", "json").out) == wire.plain(WhoView, ADA)


def test_a_login_is_tried_and_then_kept_for_its_owner_alone(
    terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, url = tmp_path / "elsewhere", json.loads((terminal.home / "run" / "server.json").read_text())["url"]

    def login(token: str) -> tuple[int, str]:
        monkeypatch.setattr("sys.stdin", io.StringIO(f"{token}\n"))
        shown = terminal("login", url, "--home", str(home))
        assert TOKEN not in shown.out + shown.err
        return shown.code, shown.err

    terminal.server.on(
        "GET", "/whoami", refusal(401, "Authorization", "x", "it was revoked", title="Unauthorized"), said(WhoView, ADA)
    )
    assert login(TOKEN)[0] == 2 and not home.exists()
    assert login(TOKEN) == (0, f"You are ada at {url}: red (member). Kept in {home}/login.json; `phalanx logout` forgets it.\n")
    assert (home / "login.json").stat().st_mode & 0o777 == 0o600 and len(list(home.iterdir())) == 1
    with connect(home) as client:
        assert client.people.whoami() == ADA
    assert terminal.server.asked[-1].token == TOKEN
    (home / "login.json").chmod(0o644)
    with pytest.raises(SetupError, match="chmod 600"):
        connect(home)
    assert terminal("logout", "--home", str(home)).err.startswith("Forgotten")
    assert terminal("logout", "--home", str(home)).err == "There was no login here.\n"
    assert login("")[0] == 2 and login("two words")[0] == 2


def test_a_home_with_a_platform_keeps_no_login(terminal: Terminal) -> None:
    with pytest.raises(Conflict, match="another --home"):
        keep_login(terminal.home, "http://127.0.0.1:1", TOKEN)
    assert not (terminal.home / "login.json").exists()


def test_the_audit_log_is_shown_without_steering_the_terminal(terminal: Terminal) -> None:
    row = AuditView(
        seq=1, at_ms=1000, by="ada", token="0a", what="job.cancel", on="x\x1b[2J-1", address="::1", outcome="done", detail=""
    )
    terminal.server.view("/audit", tuple[AuditView, ...], (row,), ())
    out = terminal("audit", "--by", "ada", "--what", "job", "--since", "1h").out
    assert "ada  0a     ::1" in out and "\x1b" not in out
    query = terminal.server.asked[-1].query
    assert (query["by"], query["what"], query["newest"], int(query["since_ms"]) > 0) == ("ada", "job", "true", True)
    assert "Nothing of that" in terminal("audit").out
    assert terminal("audit", "--since", "soon").code == 2


def test_who_may_not_is_told_in_one_line(terminal: Terminal) -> None:
    fix = "takes an admin of the whole platform, with a token of scope admin"
    terminal.server.on("GET", "/audit", refusal(403, "user", "bob", fix, title="Forbidden"))
    shown = terminal("audit")
    assert (shown.code, shown.err) == (2, f"Error: user is 'bob': {fix}\n")


def test_two_ways_of_one_login_are_refused_together(terminal: Terminal) -> None:
    shown = terminal("login", "https://phalanx.example", "--oidc", "--device")
    assert shown.code == 2
    assert "leave one out" in shown.err
