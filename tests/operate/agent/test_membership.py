"""How a home becomes a member: one exchange, whatever is lost on the way, and no secret readable by others."""

import hashlib
import json
import stat
from pathlib import Path

import pytest

from phalanx.core.errors import Conflict, PhalanxError, ServerUnreachable, SetupError, SpecError, Unauthorized
from phalanx.operate.agent.membership import enter, read, refuse_own
from phalanx.operate.home import node_name, open_home

URL = "http://127.0.0.1:8720"


class PlayedDoor:
    """A control plane that knows one token, and remembers whom it let in; `trouble` is raised once, after the fact."""

    def __init__(self) -> None:
        self.members: dict[str, str] = {}
        self.asked: list[tuple[str, str, str]] = []
        self.trouble: PhalanxError | None = None
        self.away = False

    def exchange(self, token: str, node: str, credential_sha256: str) -> None:
        self.asked.append((token, node, credential_sha256))
        if self.away:
            raise ServerUnreachable("away")
        if token != "good":
            raise Unauthorized("join token", "(unknown)", "make a new one")
        if self.members.get(node, credential_sha256) != credential_sha256:
            raise Conflict("node", node, "taken")
        self.members[node] = credential_sha256
        if self.trouble is not None:
            trouble, self.trouble = self.trouble, None
            raise trouble

    def check(self, credential: str) -> None:
        if self.away:
            raise ServerUnreachable("away")
        if hashlib.sha256(credential.encode()).hexdigest() not in self.members.values():
            raise Unauthorized("Authorization", "(an unknown token)", "read it again")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    open_home(tmp_path / "home")
    return tmp_path / "home"


@pytest.fixture
def token(tmp_path: Path) -> Path:
    (tmp_path / "token").write_text("good\n")
    return tmp_path / "token"


def test_the_first_time_takes_a_token_and_the_next_none(home: Path, token: Path) -> None:
    door = PlayedDoor()
    joined = enter(home, URL, token, "rack-a", door)
    assert (joined.node, len(joined.credential) >= 43) == ("rack-a", True)
    assert door.asked == [("good", "rack-a", hashlib.sha256(joined.credential.encode()).hexdigest())]
    assert node_name(home) == "rack-a"
    token.unlink()
    assert enter(home, URL, None, "", door) == enter(home, URL, token, "rack-a", door) == joined
    assert len(door.asked) == 1


def test_the_credential_is_for_its_owner_alone_and_in_no_words(home: Path, token: Path) -> None:
    joined = enter(home, URL, token, "rack-a", PlayedDoor())
    assert stat.S_IMODE((home / "node" / "credential.json").stat().st_mode) == 0o600
    assert joined.credential not in repr(joined)


def test_a_lost_answer_is_asked_for_again_with_the_same_credential(home: Path, token: Path) -> None:
    door = PlayedDoor()
    door.trouble = ServerUnreachable("the answer was lost")
    with pytest.raises(ServerUnreachable):
        enter(home, URL, token, "rack-a", door)
    assert read(home) is None
    assert stat.S_IMODE((home / "node" / "joining.json").stat().st_mode) == 0o600
    assert enter(home, URL, token, "", door) == read(home)
    assert door.asked[0] == door.asked[1]
    assert [path.name for path in (home / "node").glob("*.json")] == ["credential.json"]


def test_after_a_refusal_another_name_is_another_try(home: Path, token: Path) -> None:
    door = PlayedDoor()
    door.members["rack-a"] = "someone-else"
    with pytest.raises(Conflict):
        enter(home, URL, token, "rack-a", door)
    assert enter(home, URL, token, "rack-b", door).node == "rack-b"
    assert node_name(home) == "rack-b"


def test_a_control_plane_that_is_away_is_believed_to_know_its_members(home: Path, token: Path) -> None:
    door = PlayedDoor()
    door.away = True
    with pytest.raises(ServerUnreachable):
        enter(home, URL, token, "rack-a", door)
    door.away = False
    joined = enter(home, URL, token, "rack-a", door)
    door.away = True
    assert enter(home, URL, None, "", door) == joined


def test_one_that_is_not_known_any_more_hears_how_to_join_again(home: Path, token: Path) -> None:
    door = PlayedDoor()
    before = enter(home, URL, token, "rack-a", door)
    door.members.clear()
    with pytest.raises(Unauthorized, match="phalanx agent token"):
        enter(home, URL, None, "", door)
    after = enter(home, URL, token, "", door)
    assert (after.node, after.credential != before.credential) == ("rack-a", True)


def test_a_home_belongs_to_one_name_and_one_address(home: Path, token: Path) -> None:
    door = PlayedDoor()
    enter(home, URL, token, "rack-a", door)
    with pytest.raises(SetupError, match="joined as rack-a"):
        enter(home, URL, token, "rack-b", door)
    asked = len(door.asked)
    with pytest.raises(SetupError, match="give that address"):
        enter(home, "https://other.example", None, "", door)
    assert len(door.asked) == asked
    door.members.clear()
    assert enter(home, "https://other.example", token, "", door).url == "https://other.example"


@pytest.mark.parametrize("trouble", ["a wrong token", "away"])
def test_an_address_that_lets_nobody_in_costs_no_membership(home: Path, token: Path, trouble: str) -> None:
    door, other = PlayedDoor(), PlayedDoor()
    joined = enter(home, URL, token, "rack-a", door)
    other.away = trouble == "away"
    token.write_text("good" if other.away else "used")
    with pytest.raises((Unauthorized, ServerUnreachable)):
        enter(home, "https://other.example", token, "", other)
    assert enter(home, URL, None, "", door) == joined


def test_a_credential_that_was_revoked_is_never_asked_for_again(home: Path, token: Path) -> None:
    """Also when the last process was killed right after it had written the membership down."""
    door = PlayedDoor()
    before = enter(home, URL, token, "rack-a", door)
    (home / "node" / "joining.json").write_bytes((home / "node" / "credential.json").read_bytes())
    door.members.clear()
    assert enter(home, URL, token, "", door).credential != before.credential


def test_a_credential_is_shown_to_no_other_address(home: Path, token: Path) -> None:
    enter(home, URL, token, "rack-a", PlayedDoor())
    stranger = PlayedDoor()
    stranger.check = lambda credential: pytest.fail("the credential was sent to another address")  # type: ignore[method-assign]
    enter(home, "https://other.example", token, "", stranger)


@pytest.mark.parametrize("content", [None, b"", b"two words", b"\xff\xfe", b"x" * 2000])
def test_a_file_that_holds_no_token_is_named(home: Path, token: Path, content: bytes | None) -> None:
    token.unlink() if content is None else token.write_bytes(content)
    with pytest.raises(SetupError, match=r"--token-file.*phalanx agent token"):
        enter(home, URL, token, "rack-a", PlayedDoor())


def test_other_trouble_is_one_clear_error(home: Path, token: Path) -> None:
    with pytest.raises(SetupError, match="has not joined yet"):
        enter(home, URL, None, "", PlayedDoor())
    for name in ("Bad", "a b", "-", "x" * 64):
        with pytest.raises(SpecError, match="--name"):
            enter(home, URL, token, name, PlayedDoor())
    (home / "node" / "credential.json").write_text(json.dumps({"url": 1}))
    with pytest.raises(SetupError, match="delete it"):
        enter(home, URL, token, "", PlayedDoor())
    (home / "phalanx.db").touch()
    with pytest.raises(SetupError, match="holds a control plane"):
        refuse_own(home)


def test_a_standbys_address_is_added_without_a_token_and_kept(home: Path, token: Path) -> None:
    door = PlayedDoor()
    before = enter(home, URL, token, "rack-a", door)
    both = f"{URL},https://standby.example"
    now = enter(home, both, None, "", door)
    assert (now.urls, now.credential) == ((URL, "https://standby.example"), before.credential)
    assert read(home) == now
    with pytest.raises(SetupError, match="this home joined"):
        enter(home, "https://third.example", None, "", door)
