"""What ranks leave in PHALANX_ARTIFACTS, hostile or not: what is sent, what never is, and that nothing of it holds anything up."""

import asyncio
import errno
import hashlib
import os
import socket
from collections.abc import Awaitable, Callable
from io import BytesIO
from pathlib import Path
from typing import IO

import pytest

from phalanx.core import features
from phalanx.core.artifact_names import NAME_CHARS_MAX, is_artifact_name
from phalanx.core.errors import NotFound, PhalanxError, ServerUnreachable, SpecError
from phalanx.core.ids import AttemptId
from phalanx.core.messages import ArtifactAck, ArtifactSaved, Launch
from phalanx.operate.agent import artifact_files, artifacts
from phalanx.operate.agent.artifact_files import copy, look
from phalanx.operate.agent.artifacts import Artifacts
from phalanx.operate.agent.attempts import Accepted, AttemptFolder

ATTEMPT = AttemptId("demo-1.1")
KNOWN = (features.ARTIFACTS,)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AttemptFolder:
    monkeypatch.setattr(artifacts, "LOOK_S", 0.02)
    monkeypatch.setattr(artifacts, "AGAIN_S", 0.02)
    launch = Launch(
        attempt=ATTEMPT, argv=("true",), python="", env={}, code="", folder="/", first_rank=0, world_size=1, node_rank=0,
        num_nodes=1, devices=(0,), cpus=0, master_address="127.0.0.1", master_port=1, hyperparameters={}, checkpoint_every=0,
        checkpoint_keep_last=1, restarts=0,
    )  # fmt: skip
    made = AttemptFolder(tmp_path, Accepted(launch, 1))
    made.artifacts.mkdir()
    made.stream("log", 0).touch()
    return made


class Server:
    """Keeps what is uploaded and said; `refusal` is raised instead, as often as it is there."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.said: list[ArtifactSaved] = []
        self.refusals: list[Exception] = []
        self.answering = True
        self.artifacts: Artifacts | None = None

    async def upload(self, attempt: AttemptId, sha256: str, size_bytes: int, source: IO[bytes]) -> None:
        if self.refusals:
            raise self.refusals.pop(0)
        source.seek(0)
        data = source.read()
        assert (hashlib.sha256(data).hexdigest(), len(data)) == (sha256, size_bytes)
        self.blobs[sha256] = data

    def say(self, saved: ArtifactSaved) -> None:
        self.said.append(saved)
        if self.answering and self.artifacts is not None:
            self.artifacts.answered(ArtifactAck(saved.attempt, saved.name, saved.sha256))

    def has(self) -> dict[str, bytes]:
        """The newest version of each file."""
        return {saved.name: self.blobs[saved.sha256] for saved in self.said}


def following(folder: AttemptFolder, server: Server, scenario: Callable[[Artifacts], Awaitable[None]]) -> None:
    def ended(task: "asyncio.Task[None]") -> None:
        assert task.cancelled() or task.exception() is None

    async def run() -> None:
        server.artifacts = sending = Artifacts(server.upload, server.say, ended)
        sending.add(folder)
        async with asyncio.timeout(60):
            await scenario(sending)
        sending.drop(ATTEMPT)
        await asyncio.sleep(0)

    asyncio.run(run())


async def becomes(look: Callable[[], bool]) -> None:
    while not look():
        await asyncio.sleep(0.005)


def test_names_that_leave_the_folder_or_hide_something_are_none() -> None:
    for good in ("a", "a/b.c", "..a/b..", "naïve #%", "a\\..\\b", "-rf", "x" * NAME_CHARS_MAX):
        assert is_artifact_name(good), good
    bad = (
        "",
        ".",
        "..",
        "/a",
        "a/",
        "a//b",
        "a/../b",
        "./a",
        "a\nb",
        "a\x00b",
        "a\x1b[2Jb",
        "\u202egpj.exe",
        "a\udcff",
        "a\u2028b",
    )
    for name in (*bad, "x" * (NAME_CHARS_MAX + 1)):
        assert not is_artifact_name(name), name


def test_a_hostile_folder_gives_its_plain_files_and_a_sentence_for_each_kind_of_the_rest(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    (root / "deep").mkdir(parents=True)
    outside.mkdir()
    (outside / "secret").write_text("secret")
    (root / "plain").write_text("1")
    (root / "deep" / "plain").write_text("2")
    (root / "link").symlink_to(outside / "secret")
    (root / "folder").symlink_to(outside)
    (root / "loop").symlink_to(root)
    os.mkfifo(root / "pipe")
    (root / "line\nbreak").touch()
    (root / "esc\x1b[2J").touch()
    Path(os.fsdecode(os.fsencode(root) + b"/\xff")).touch()
    with (root / "huge").open("wb") as file:
        file.truncate(artifact_files.FILE_BYTES_MAX + 1)
    with socket.socket(socket.AF_UNIX) as listening:
        at = os.open(root, os.O_RDONLY)
        listening.bind(f"/proc/self/fd/{at}/socket")
        os.close(at)
    nested = root
    for _ in range(artifact_files.DEPTH_MAX + 3):
        nested = nested / "d"
    nested.mkdir(parents=True)
    (nested / "lost").touch()
    seen = look(root)
    assert sorted(found.name for found in seen.files) == ["deep/plain", "plain"]
    assert len(seen.problems) == 4, seen.problems


def test_nothing_outside_is_read_whatever_is_swapped_after_the_look(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    (root / "deep").mkdir(parents=True)
    outside.mkdir()
    (outside / "file").write_text("secret")
    for name in ("file", "deep/file"):
        (root / name).write_text("plain")
    assert copy(root, "deep/file", BytesIO()) is not None
    (root / "file").unlink()
    (root / "file").symlink_to(outside / "file")
    (root / "deep").rename(root / "moved")
    (root / "deep").symlink_to(outside)
    for name in ("file", "deep/file", "../outside/file"):
        into = BytesIO()
        assert name.startswith("..") or copy(root, name, into) is None
        assert b"secret" not in into.getvalue()
    root.rename(tmp_path / "aside")
    root.symlink_to(outside)
    assert copy(root, "file", BytesIO()) is None
    assert look(root).files == []
    assert look(tmp_path / "absent").problems == set()


def test_a_folder_of_far_too_many_files_is_cut_with_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifact_files, "FILES_MAX", 100)
    for number in range(1_000):
        (tmp_path / str(number)).touch()
    seen = look(tmp_path)
    assert (len(seen.files), seen.num_entries) == (100, 100)
    assert seen.problems == {"only 100 files of an attempt are kept"}


def test_a_flood_of_what_is_no_file_ends_the_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifact_files, "ENTRIES_MAX", 100)
    for number in range(200):
        (tmp_path / f"folder-{number}").mkdir()
    assert any("100 entries" in problem for problem in look(tmp_path).problems)


def test_a_copy_is_what_its_hash_says_and_no_longer_than_the_file_was(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 3_000_000)
    into = BytesIO()
    copied = copy(tmp_path, "file", into)
    assert copied is not None
    assert (copied.size_bytes, copied.sha256) == (3_000_000, hashlib.sha256(b"x" * 3_000_000).hexdigest())
    assert into.getvalue() == b"x" * 3_000_000


def test_files_are_sent_while_ranks_run_and_the_rest_at_the_end(folder: AttemptFolder) -> None:
    server = Server()

    async def scenario(sending: Artifacts) -> None:
        (folder.artifacts / "early").write_text("1")
        await asyncio.sleep(0.1)
        assert server.said == [], "nobody has said yet that it understands artifacts"
        sending.welcome(KNOWN)
        await becomes(lambda: server.has() == {"early": b"1"})
        (folder.artifacts / "early").write_text("2")
        await becomes(lambda: server.has() == {"early": b"2"})
        (folder.artifacts / "late").write_text("3")
        await becomes(lambda: sending.drained(ATTEMPT))
        assert server.has() == {"early": b"2", "late": b"3"}

    following(folder, server, scenario)


def test_a_file_that_never_stands_still_is_sent_as_it_is(folder: AttemptFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifact_files, "CALM_NS", 10**6)
    server = Server()

    async def scenario(sending: Artifacts) -> None:
        sending.welcome(KNOWN)
        with (folder.artifacts / "growing").open("ab", buffering=0) as growing:
            while len(server.said) < 3:
                growing.write(b".")
                await asyncio.sleep(0)
        sizes = [saved.size_bytes for saved in server.said]
        assert sizes == sorted(set(sizes))

    following(folder, server, scenario)


def test_a_large_file_that_never_stands_still_is_sent_less_often(folder: AttemptFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifacts, "BYTES_PER_S", 1)
    server = Server()

    async def scenario(sending: Artifacts) -> None:
        sending.welcome(KNOWN)
        (folder.artifacts / "large").write_text("x" * 100)
        await becomes(lambda: len(server.said) == 1)
        (folder.artifacts / "large").write_text("y" * 100)
        await asyncio.sleep(0.2)
        assert len(server.said) == 1, "not before 100 s"
        await becomes(lambda: sending.drained(ATTEMPT))
        assert server.has() == {"large": b"y" * 100}, "but for the end"

    following(folder, server, scenario)


def test_names_that_come_and_go_do_not_add_up(folder: AttemptFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifacts, "FILES_MAX", 3)
    server = Server()

    async def scenario(sending: Artifacts) -> None:
        sending.welcome(KNOWN)
        for name in "abc":
            (folder.artifacts / name).write_text("1")
            await becomes(lambda: name in server.has())  # noqa: B023 - awaited here
            (folder.artifacts / name).unlink()
        (folder.artifacts / "d").write_text("1")
        await becomes(lambda: "only 3 files" in folder.stream("log", 0).read_text())
        await becomes(lambda: sending.drained(ATTEMPT))

    following(folder, server, scenario)
    assert sorted(server.has()) == ["a", "b", "c"]


def test_an_empty_folder_or_none_holds_up_no_end(folder: AttemptFolder) -> None:
    async def scenario(sending: Artifacts) -> None:
        assert sending.drained(ATTEMPT), "at once, and before any connection"

    following(folder, Server(), scenario)
    folder.artifacts.rmdir()
    following(folder, Server(), scenario)


def test_an_older_control_plane_holds_up_no_end(folder: AttemptFolder) -> None:
    server = Server()
    (folder.artifacts / "file").touch()

    async def scenario(sending: Artifacts) -> None:
        assert not sending.drained(ATTEMPT)
        sending.welcome(())
        assert sending.drained(ATTEMPT)

    following(folder, server, scenario)
    assert server.said == []


def test_what_was_not_answered_is_sent_again_on_the_next_connection(folder: AttemptFolder) -> None:
    server = Server()
    server.answering = False
    (folder.artifacts / "file").write_text("1")

    async def scenario(sending: Artifacts) -> None:
        sending.welcome(KNOWN)
        await becomes(lambda: len(server.said) == 1)
        await asyncio.sleep(0.1)
        assert (len(server.said), sending.drained(ATTEMPT)) == (1, False)
        server.blobs.clear()
        server.answering = True
        sending.welcome(KNOWN)
        await becomes(lambda: sending.drained(ATTEMPT))
        assert server.has() == {"file": b"1"}, "the bytes too: the other side may have lost them"

    following(folder, server, scenario)


@pytest.mark.parametrize(
    ("refusal", "told"),
    [
        (ServerUnreachable("away"), ""),
        (SpecError("artifact", "x", "it is too large"), "it is too large"),
        (OSError(errno.EIO, "x"), ""),
    ],
)
def test_a_refusal_is_tried_again_or_told_and_never_the_end_of_the_rest(
    folder: AttemptFolder, refusal: PhalanxError, told: str
) -> None:
    server = Server()
    server.refusals = [refusal]
    (folder.artifacts / "a").write_text("1")

    async def scenario(sending: Artifacts) -> None:
        sending.welcome(KNOWN)
        await becomes(lambda: not server.refusals)
        (folder.artifacts / "b").write_text("2")
        await becomes(lambda: sending.drained(ATTEMPT))
        assert server.has() == ({"b": b"2"} if told else {"a": b"1", "b": b"2"})
        assert told in folder.stream("log", 0).read_text()

    following(folder, server, scenario)


def test_an_attempt_that_is_another_nodes_now_sends_no_more(folder: AttemptFolder) -> None:
    server = Server()
    server.refusals = [NotFound("attempt", ATTEMPT, "is not this node's any more")] * 3
    for name in "abc":
        (folder.artifacts / name).touch()

    async def scenario(sending: Artifacts) -> None:
        sending.welcome(KNOWN)
        await becomes(lambda: sending.drained(ATTEMPT))
        assert server.said == []

    following(folder, server, scenario)


def test_a_full_disk_of_the_node_does_not_keep_the_attempt(folder: AttemptFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server()
    server.refusals = [OSError(errno.ENOSPC, "No space left on device")] * 1_000
    (folder.artifacts / "a").touch()

    async def scenario(sending: Artifacts) -> None:
        sending.welcome(KNOWN)
        await becomes(lambda: sending.drained(ATTEMPT))
        assert "No space left" in folder.stream("log", 0).read_text()

    following(folder, server, scenario)


def test_what_is_left_out_is_said_once_in_the_ranks_log(folder: AttemptFolder) -> None:
    server = Server()
    for number in range(3):
        (folder.artifacts / f"link-{number}").symlink_to("/etc/passwd")
    (folder.artifacts / "plain").touch()

    async def scenario(sending: Artifacts) -> None:
        sending.welcome(KNOWN)
        await becomes(lambda: "plain" in server.has())
        await asyncio.sleep(0.1)
        await becomes(lambda: sending.drained(ATTEMPT))

    following(folder, server, scenario)
    assert list(server.has()) == ["plain"]
    assert (
        folder.stream("log", 0).read_text() == "phalanx: artifacts: only files and folders are taken, no links, pipes or sockets\n"
    )
