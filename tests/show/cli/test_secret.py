"""secret set, ls, rm: where a value comes from, and that none is asked for in vain."""

import io
import json
from pathlib import Path

import pytest

from phalanx.core import wire
from phalanx.core.views import KeyRotatedView, SecretView
from tests.recorded import Said, recorded_server, refusal, said
from tests.show.cli.terminal import Terminal
from tests.show.cli.test_following import COMMAND, on_terminal


@pytest.fixture
def stored(terminal: Terminal) -> Terminal:
    terminal.server.on("PUT", "/secrets/TOKEN", Said(204))
    return terminal


@pytest.mark.parametrize(("given", "kept"), [(b"one\ntwo\n", b"one\ntwo"), (b"one\r\n", b"one"), (b" one", b" one")])
def test_a_value_is_what_was_given_but_for_one_line_break(
    stored: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: bytes, kept: bytes
) -> None:
    (tmp_path / "value").write_bytes(given)
    assert stored("secret", "set", "TOKEN", "--from-file", str(tmp_path / "value")).code == 0
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given)))
    shown = stored("secret", "set", "TOKEN")
    assert (shown.code, shown.out, shown.err) == (0, "", "Stored TOKEN. Jobs get it by `secrets: [TOKEN]`.\n")
    assert [one.body for one in stored.server.asked] == [kept, kept]


def test_a_wrong_name_is_refused_before_a_value_is_asked_for(tmp_path: Path) -> None:
    with recorded_server(tmp_path / "home") as server:
        code, seen = on_terminal(tmp_path, *COMMAND, "secret", "set", "a-b")
    assert (code, server.asked) == (2, [])
    assert seen.startswith(b"Error: secret is 'a-b': name secrets with letters")


def test_ls_shows_names_and_dates(terminal: Terminal) -> None:
    views = (SecretView(name="TOKEN", set_ms=1000),)
    terminal.server.view("/secrets", tuple[SecretView, ...], views, views, ())
    assert [line.split() for line in terminal("secret", "ls").out.splitlines()] == [
        ["NAME", "SET", "(UTC)"],
        ["TOKEN", "1970-01-01", "00:00:01"],
    ]
    assert json.loads(terminal("secret", "ls", "-o", "json").out) == wire.plain(tuple[SecretView, ...], views)
    assert "`phalanx secret set NAME`" in terminal("secret", "ls").out


def test_rm_of_a_secret_that_is_not_there(stored: Terminal) -> None:
    stored.server.on("DELETE", "/secrets/TOKEN", Said(204), refusal(404, "secret", "TOKEN", "is not stored", title="NotFound"))
    assert stored("secret", "rm", "TOKEN").err == "Removed TOKEN.\n"
    shown = stored("secret", "rm", "TOKEN")
    assert (shown.code, shown.err) == (4, "Error: secret is 'TOKEN': is not stored\n")


def test_rotate_key_says_how_many_and_what_to_back_up(terminal: Terminal) -> None:
    terminal.server.on("POST", "/secret-key/rotate", said(KeyRotatedView, KeyRotatedView(secrets=1)))
    assert terminal("secret", "rotate-key").out == "1 secret sealed with a new key; back up the database and secret.key again.\n"
