"""Logs and records arrive whole, in order, per attempt and rank, whatever the control plane does meanwhile."""

import asyncio
import base64
import os
import signal
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from phalanx.core import wire
from phalanx.core.ids import AttemptId
from phalanx.core.messages import Chunk, ChunkAck, Renew, Stream
from phalanx.core.records import Ring
from phalanx.operate.agent.attempts import accept
from phalanx.operate.agent.connection import CHUNK_BYTES_PER_S, RENEW_S_MIN
from phalanx.operate.agent.rank_file import SLACK_BYTES
from phalanx.operate.agent.shipping import CHUNK_BYTES, WINDOW, Shipping
from phalanx.operate.agent.sockets import agent_socket, socket_folder
from tests.operate.agent.agent_cell import PACE_MS, Cell, until

LINES = "import os\nfor number in range(20000): print(os.environ['RANK'], number)"
STEPS = """
import json, os, socket, time
ring = socket.socket(socket.AF_UNIX)
ring.connect(os.environ["PHALANX_SOCKET"])
ring.sendall(b'garbage\\n{"kind": "unknown"}\\n[]\\n')
while not os.path.exists(os.environ["DONE"]):
    line = json.dumps({"kind": "metric"}) + "\\n"
    with open(os.environ["PHALANX_RECORDS"], "a") as out:
        out.write(line)
        size = out.tell()
    said = {"rank": int(os.environ["RANK"]), "pid": os.getpid(), "offset": size, "kind": "ring"}
    ring.sendall(json.dumps(said).encode() + b"\\n")
    time.sleep(0.03)
"""


def chunks(shipping: Shipping, number: int = 1) -> list[Chunk | None]:
    """What it has to send, that many times in a row."""

    async def asked() -> list[Chunk | None]:
        return [await shipping.next_chunk() for _ in range(number)]

    return asyncio.run(asked())


def test_P02_the_last_log_lines_are_there_before_ended_is_said(cell: Cell) -> None:
    cell.far.start(cell.launch(LINES))
    report = cell.far.phase("demo-1.1", "ended")
    for rank in range(2):
        assert cell.far.text("log", "demo-1.1", rank) == "".join(f"{rank} {number}\n" for number in range(20000))
    said = [message for _, message in cell.far.heard]
    ended_at = next(index for index, message in enumerate(said) if getattr(message, "report", None) == report)
    assert not any(isinstance(message, Chunk) for message in said[ended_at:])


def test_P03_streams_are_keyed_by_attempt_and_rank(cell: Cell) -> None:
    program = "import os\nprint(os.environ['PHALANX_ATTEMPT'], os.environ['RANK'])"
    program += "\nopen(os.environ['PHALANX_RECORDS'], 'a').write(os.environ['RANK'] + '\\n')"
    for attempt in ("demo-1.1", "demo-1.2", "other-2.1"):
        cell.far.start(cell.launch(program, attempt=attempt))
    for attempt in ("demo-1.1", "demo-1.2", "other-2.1"):
        cell.far.phase(attempt, "ended")
    expected = {
        f"log/{attempt}/{rank}": f"{attempt} {rank}\n" for attempt in ("demo-1.1", "demo-1.2", "other-2.1") for rank in (0, 1)
    }
    expected |= {key.replace("log/", "records/"): f"{key[-1]}\n" for key in list(expected)}
    assert {key: bytes(data).decode() for key, data in cell.far.streams.items()} == expected


def test_a_ring_brings_a_record_over_at_once_and_garbage_is_dropped(cell: Cell) -> None:
    """To an agent that looks at no file by itself."""
    until(cell.far.hellos)
    cell.agent.end()
    cell.agent.looks = False
    cell.agent.start()
    until(lambda: len(cell.far.hellos()) == 2)
    done = cell.home / "done"
    cell.far.start(cell.launch(STEPS, ranks=1, env={"DONE": str(done)}))
    until(lambda: cell.far.text("records", "demo-1.1", 0).count("\n") > 30)
    done.touch()
    cell.far.phase("demo-1.1", "ended")


def test_a_caller_that_sends_a_line_without_end_is_cut_off_and_others_are_served(cell: Cell) -> None:
    until(cell.far.hellos)
    path = str(agent_socket(socket_folder(cell.home)))
    with socket.socket(socket.AF_UNIX) as rude, socket.socket(socket.AF_UNIX) as polite:
        rude.connect(path)
        rude.settimeout(60)
        polite.connect(path)
        with pytest.raises(OSError):
            while True:
                rude.sendall(b"x" * 4096)
        polite.sendall(wire.dumps(Ring, Ring(rank=0, pid=1, offset=1)).encode() + b"\n")
    assert cell.agent.process is not None
    assert cell.agent.process.poll() is None


def test_ranks_go_on_without_a_control_plane_and_everything_is_shipped_later(cell: Cell) -> None:
    done = cell.home / "done"
    cell.far.start(cell.launch(STEPS, env={"DONE": str(done)}))
    until(lambda: cell.far.text("records", "demo-1.1", 0))
    cell.far.down()
    records = cell.folder() / "rank-0.records"
    size = records.stat().st_size
    until(lambda: records.stat().st_size > size + 200)
    done.touch()
    until((cell.folder() / "ended.json").exists)
    cell.far.up()  # on another port
    report = cell.far.phase("demo-1.1", "ended")
    assert [exited.code for exited in report.exits] == [0, 0]
    assert cell.far.text("records", "demo-1.1", 0) == records.read_text()


def logged(cell: Cell) -> list[Chunk]:
    return [message for _, message in list(cell.far.heard) if isinstance(message, Chunk)]


def test_a_control_plane_that_never_acks_gets_a_window_and_its_renewals_but_no_end(cell: Cell) -> None:
    cell.on_terms(PACE_MS, 60_000)
    cell.far.acking = False
    cell.far.start(cell.launch("import sys; sys.stdout.write('x' * 4_000_000)", ranks=1))
    cell.far.phase("demo-1.1", "stopping")
    until(lambda: len(logged(cell)) >= WINDOW)
    cell.far.grants(60_000)
    chunks = logged(cell)
    assert len(chunks) == WINDOW
    assert all(report.phase != "ended" for report in cell.far.reports("demo-1.1"))
    cell.far.acking = True
    for chunk in chunks:
        cell.far.say(cell.far.written(chunk))
    cell.far.phase("demo-1.1", "ended")
    assert len(cell.far.text("log", "demo-1.1", 0)) == 4_000_000


def test_renewals_pass_a_flood_of_logs(cell: Cell) -> None:
    """In bytes, which a machine that stalls does not make more of: the flood has a pace."""
    cell.on_terms(PACE_MS, 60_000)
    cell.far.start(cell.launch("while True: print('x' * 1000)", ranks=2))
    until(lambda: len(cell.far.text("log", "demo-1.1", 0)) > 10_000_000)
    between = [0]
    for _, message in list(cell.far.heard):
        if isinstance(message, Renew):
            between.append(0)
        elif isinstance(message, Chunk):
            between[-1] += len(message.data)
    assert max(between) < 2 * CHUNK_BYTES_PER_S * RENEW_S_MIN
    os.kill(cell.shim_pid(), signal.SIGKILL)
    cell.far.down()  # what is left of the flood is of no interest


def test_an_answer_behind_what_was_sent_makes_shipping_go_back(tmp_path: Path, cell: Cell) -> None:
    folder = accept(tmp_path / "attempts", cell.launch("", ranks=1), 1)
    text = os.urandom(CHUNK_BYTES * 3)
    folder.stream("log", 0).write_bytes(text)
    shipping = Shipping()
    shipping.add(folder)
    shipping.welcome({"log/demo-1.1/0": CHUNK_BYTES})
    first, second = chunks(shipping, 2)
    assert first is not None
    assert second is not None
    assert (first.offset, second.offset) == (CHUNK_BYTES, 2 * CHUNK_BYTES)
    for _ in range(2):  # the other side lost its file's end: it refuses both chunks and says what it has
        shipping.answered(ChunkAck("log", AttemptId("demo-1.1"), 0, 10))
    [again] = chunks(shipping)
    assert again is not None
    assert again.offset == 10
    assert not shipping.drained(AttemptId("demo-1.1"))
    shipping.answered(ChunkAck("log", AttemptId("demo-1.1"), 0, len(text)))
    assert shipping.drained(AttemptId("demo-1.1"))


@pytest.mark.parametrize(
    "place",
    ["os.mkfifo(path)", "os.mkdir(path)", "os.symlink('/etc/hostname', path)", "socket.socket(socket.AF_UNIX).bind(path)"],
)
def test_what_is_no_file_loses_its_own_stream_only(cell: Cell, place: str) -> None:
    program = (
        "import os, socket\nfolder = os.path.dirname(os.environ['PHALANX_RECORDS'])\nos.chdir(folder)\n"
        f"path = 'rank-' + os.environ['RANK'] + '.records'\n{place}\nprint('said')"
    )
    cell.far.start(cell.launch(program, attempt="bad-1.1", ranks=1))
    cell.far.start(cell.launch("open(__import__('os').environ['PHALANX_RECORDS'], 'w').write('kept')", attempt="good-2.1", ranks=1))
    assert cell.far.phase("bad-1.1", "ended").exits[0].code == 0
    assert cell.far.phase("good-2.1", "ended").exits[0].code == 0
    assert cell.far.text("log", "bad-1.1", 0) == "said\n"
    assert cell.far.text("records", "bad-1.1", 0) == ""
    assert cell.far.text("records", "good-2.1", 0) == "kept"
    assert cell.agent.log().count('"event": "not_shipped"') == 1
    assert len(cell.far.hellos()) == 1


def test_a_look_at_one_attempt_reads_no_other(tmp_path: Path, cell: Cell) -> None:
    shipping = Shipping()
    folders = [
        accept(tmp_path / "attempts", replace(cell.launch("", ranks=1), attempt=AttemptId(f"demo-{n}.1")), 1) for n in (1, 2)
    ]
    for folder in folders:
        shipping.add(folder)
    assert chunks(shipping) == [None]  # nothing there yet, and looked at
    for folder in folders:
        folder.stream("log", 0).write_bytes(b"line\n")
    shipping.due(attempt=folders[1].attempt)
    [chunk, nothing] = chunks(shipping, 2)
    assert chunk is not None
    assert chunk.attempt == folders[1].attempt
    assert nothing is None
    shipping.due()
    [chunk] = chunks(shipping)
    assert chunk is not None
    assert chunk.attempt == folders[0].attempt
    shipping.close()


@pytest.mark.parametrize(("stream", "what"), [("log", "log"), ("records", "record file")])
def test_a_file_over_its_cap_is_cut_with_a_line_that_says_so_and_its_rank_goes_on(
    stream: Stream, what: str, tmp_path: Path, cell: Cell
) -> None:
    folder = accept(tmp_path / "attempts", cell.launch("", ranks=1), 1)
    path, cap = folder.stream(stream, 0), CHUNK_BYTES + 1000
    with path.open("ab", buffering=0) as rank:
        rank.write(b"x" * cap)
        shipping = Shipping(**{"log_bytes_max" if stream == "log" else "records_bytes_max": cap})
        shipping.add(folder)
        said = b"".join(base64.b64decode(chunk.data) for chunk in chunks(shipping, 3) if chunk)
        assert said == b"x" * cap
        rank.write(b"y" * (SLACK_BYTES + 1000))
        shipping.due()
        [notice] = chunks(shipping)
        assert notice is not None
        said += base64.b64decode(notice.data)
        assert said.endswith(f"\nphalanx: this {what} is cut here: it went on after {cap} bytes\n".encode())
        asyncio.run(shipping.trim())
        assert path.stat().st_size == cap + 1
        rank.write(b"more")
        shipping.due()
        assert chunks(shipping) == [None]
    assert not shipping.drained(AttemptId("demo-1.1"))
    shipping.answered(ChunkAck(stream, AttemptId("demo-1.1"), 0, len(said)))
    assert shipping.drained(AttemptId("demo-1.1"))
    shipping.close()
