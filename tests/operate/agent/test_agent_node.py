"""What a node says it has, which ports it keeps, where its sockets live, and what it admits."""

import asyncio
import hashlib
import os
from pathlib import Path
from random import Random

import pytest

from phalanx.core.devices import CPU_SLOT, Device, parse_devices
from phalanx.core.errors import LinkDown, SetupError
from phalanx.core.ids import AttemptId, NodeId
from phalanx.core.messages import PROTOCOL, Granted, Hello, ToAgent
from phalanx.operate.agent.connection import BACKOFF_S, Connection, backoff_s, written_url
from phalanx.operate.agent.devices import GpuSeen, discover, gpu_type, node_shape, numbered, own_address, read_nvml
from phalanx.operate.agent.fence import Fence
from phalanx.operate.agent.launch_env import Paths, rank_starts
from phalanx.operate.agent.ports import claim_block, is_taken
from phalanx.operate.agent.sockets import agent_socket, leave_sockets, shim_socket, socket_folder
from tests.operate.agent.agent_cell import DEADLINE_S, TOKEN, AgentProcess, Cell, FarSide, until

H200 = GpuSeen(0, "NVIDIA H200", 150_754_820_096, "GPU-34a3a564-9ebf-c544-dd3b-8f12a181879c")
"""Recorded from NVML on a machine with driver 580.159.04."""


def test_without_a_driver_cpu_slots_stand_in_and_say_so() -> None:
    assert read_nvml() is None or Path("/dev/nvidiactl").exists()
    slots = discover(lambda: None, 3)
    assert slots == tuple(Device(index, CPU_SLOT, "CPU slot") for index in range(3))
    assert len(discover(lambda: None, None)) == os.cpu_count()
    assert discover(lambda: (), 1) == (Device(0, CPU_SLOT, "CPU slot"),)


def test_gpus_are_what_nvml_says_unless_slots_are_asked_for() -> None:
    assert discover(lambda: (H200,), None) == (Device(0, "H200", H200.product, H200.memory_bytes, H200.uuid),)
    assert discover(lambda: (H200,), 2)[0].type == CPU_SLOT


def test_a_gpu_keeps_its_number_until_the_next_boot_whichever_others_are_gone(tmp_path: Path) -> None:
    """An attempt holds number 2 by that name; the driver counts from 0 again when number 1 is gone."""

    def numbers(uuids: str, boot: str = "boot-1") -> dict[str, int]:
        gpus = tuple(GpuSeen(index, "NVIDIA H200", 1, uuid) for index, uuid in enumerate(uuids))
        return {device.uuid: device.index for device in discover(numbered(lambda: gpus, tmp_path / "devices.json", boot), None)}

    assert numbers("abcd") == {"a": 0, "b": 1, "c": 2, "d": 3}
    assert numbers("acd") == {"a": 0, "c": 2, "d": 3}
    assert numbers("eacd") == {"a": 0, "c": 2, "d": 3, "e": 4}
    assert numbers("acdb") == {"a": 0, "b": 1, "c": 2, "d": 3}, "it is back"
    assert numbers("ecd", "boot-2") == {"e": 0, "c": 1, "d": 2}, "nothing lives on from before"
    assert numbered(lambda: None, tmp_path / "devices.json", "boot-2")() is None


@pytest.mark.parametrize(
    ("product", "gigabytes", "expected"),
    [
        ("NVIDIA H100 80GB HBM3", 85, "H100"),
        ("NVIDIA H100 PCIe", 85, "H100"),
        ("NVIDIA H200", 150, "H200"),
        ("NVIDIA B200", 190, "B200"),
        ("NVIDIA A100-SXM4-80GB", 85, "A100-80"),
        ("NVIDIA A100-SXM4-40GB", 42, "A100-40"),
        ("NVIDIA A100 80GB PCIe", 85, "A100-80"),
        ("NVIDIA A10G", 24, "A10G"),
        ("NVIDIA L4", 24, "L4"),
        ("NVIDIA L40S", 48, "L40S"),
        ("Tesla T4", 16, "T4"),
        ("Tesla V100-SXM2-16GB", 17, "V100"),
        ("NVIDIA GeForce RTX 4090", 25, "RTX-4090"),
        ("NVIDIA", 1, "GPU"),
    ],
)
def test_type_names_come_from_product_names(product: str, gigabytes: int, expected: str) -> None:
    found = gpu_type(product, gigabytes * 10**9)
    assert found == expected
    assert parse_devices(f"{found}:1").types == (expected,)


def test_gpu_ranks_see_their_gangs_devices_in_order(cell: Cell) -> None:
    gpus = tuple(Device(index, "H100", "", 0, f"GPU-{index}") for index in range(4))
    shape = node_shape(NodeId("a"), gpus, (20001, 20064), None)
    starts = rank_starts(
        cell.launch("", devices=(3, 1)), shape, Paths("/f", "/s", "/venv/bin/python"), {"PATH": "/bin", "PHALANX_HOME": "/h"}
    )
    assert [start.env["CUDA_VISIBLE_DEVICES"] for start in starts] == ["GPU-3,GPU-1"] * 2
    assert starts[0].argv[0] == "/venv/bin/python"
    assert starts[0].env["PATH"] == "/venv/bin:/bin"
    assert "PHALANX_HOME" not in starts[0].env


@pytest.mark.parametrize(
    ("library", "names"),
    [
        ("torch's env://", {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}),
        ("deepspeed.init_distributed, without looking for MPI", {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}),
        ("Lightning's TorchElasticEnvironment", {"TORCHELASTIC_RUN_ID", "LOCAL_RANK", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"}),
        ("accelerate's PartialState", {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"}),
    ],
)
def test_ranks_have_what_a_script_of_another_library_reads(cell: Cell, library: str, names: set[str]) -> None:
    shape = node_shape(NodeId("a"), discover(lambda: None, 2), (20001, 20064), None)
    first, second = rank_starts(cell.launch(""), shape, Paths("/f", "/s", "/bin/python"), {})
    assert names <= {name for name, value in first.env.items() if value}, library
    assert [start.env["RANK"] + start.env["LOCAL_RANK"] for start in (first, second)] == ["00", "11"]


def test_blocks_of_ports_do_not_overlap_and_come_back() -> None:
    first = claim_block()
    second = claim_block()
    assert second.ports[0] >= first.ports[1] or second.ports[1] <= first.ports[0]
    assert is_taken(first.ports[0] - 1)
    assert first.ports[1] - first.ports[0] == 63
    second.guard.close()
    again = claim_block(second.ports[0] - 1)
    assert again.ports == second.ports
    for block in (first, again):
        block.guard.close()


def test_sockets_fit_their_address_however_deep_the_home(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 120)
    folder = socket_folder(deep, tmp_path)
    assert folder == socket_folder(deep, tmp_path)
    assert folder.stat().st_mode & 0o777 == 0o700
    short = socket_folder(Path("/tmp") / f"ph{os.getpid()}", tmp_path)
    assert len(os.fsencode(shim_socket(short, AttemptId("x" * 80 + "-1.1")))) < 108
    assert agent_socket(short).parent == short
    short.rmdir()
    short.parent.rmdir()


def test_the_socket_folder_of_a_deep_home_goes_with_its_last_socket(tmp_path: Path) -> None:
    folder = socket_folder(tmp_path / ("d" * 120), tmp_path)
    shim = shim_socket(folder, AttemptId("demo-1.1"))
    for path in (agent_socket(folder), shim):
        path.touch()
    leave_sockets(folder)
    assert list(folder.iterdir()) == [shim]
    shim.unlink()
    leave_sockets(folder)
    assert not folder.exists()


def test_a_link_in_the_place_of_the_socket_folder_is_refused(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 120)
    name = f"phalanx-{os.getuid()}-{hashlib.sha256(os.fsencode(deep.resolve())).hexdigest()[:12]}"
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SetupError, match="not a folder of this user"):
        socket_folder(deep, tmp_path)


def test_the_fence_never_goes_back_and_survives_a_restart(tmp_path: Path) -> None:
    fence = Fence(tmp_path / "epoch.json")
    assert [asyncio.run(fence.admit(epoch)) for epoch in (1, 3, 2, 3)] == [True, True, False, True]
    assert Fence(tmp_path / "epoch.json").seen == 3


def test_dials_back_off_within_bounds_and_apart() -> None:
    pauses = [backoff_s(failures, Random(7)) for failures in range(40)]
    assert all(BACKOFF_S[0] / 2 <= pause <= BACKOFF_S[1] for pause in pauses)
    assert pauses[-1] > 10 * pauses[0]
    assert backoff_s(9, Random(1)) != backoff_s(9, Random(2))


def test_the_servers_address_is_read_anew(tmp_path: Path) -> None:
    read = written_url(tmp_path)
    assert read() is None
    (tmp_path / "run").mkdir()
    for text, expected in (('{"url": "http://127.0.0.1:1"}', "http://127.0.0.1:1"), ("half a li", None), ("[]", None)):
        (tmp_path / "run" / "server.json").write_text(text)
        assert read() == expected


def test_a_second_agent_of_a_home_is_refused(cell: Cell) -> None:
    until(cell.far.hellos)
    second = AgentProcess(cell.home)
    second.start()
    assert second.process is not None
    assert second.process.wait(DEADLINE_S) == 1
    assert "another agent of this home is running" in second.log()
    (cell.home / "agent.log").write_text("")  # its traceback was wanted


def test_a_connection_that_breaks_while_it_is_cancelled_still_ends(tmp_path: Path) -> None:
    far = FarSide(tmp_path)
    far.up()

    async def hello() -> Hello:
        return Hello(node_shape(NodeId("a"), (), (1, 2), None), "boot", PROTOCOL, "0", 0, ())

    async def scenario() -> bool:
        inside = asyncio.Event()

        async def heard(message: ToAgent) -> None:
            if isinstance(message, Granted):
                inside.set()
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    raise LinkDown("broke in the very moment") from None

        async def next_chunk() -> None:
            return None

        connection = Connection(written_url(tmp_path), TOKEN, hello, heard, next_chunk, Random(1))
        running = asyncio.create_task(connection.run())
        await inside.wait()
        running.cancel()
        done, _ = await asyncio.wait({running}, timeout=DEADLINE_S)
        return running in done and running.cancelled()

    ended = asyncio.run(scenario())
    far.down()
    assert ended


def wakings(pid: int) -> int:
    """How often a thread of the process gave up the CPU to wait, so far."""
    said = [status.read_text() for status in Path(f"/proc/{pid}/task").glob("*/status")]
    return sum(int(text.partition("\nvoluntary_ctxt_switches:")[2].split()[0]) for text in said)


def test_an_agent_with_nothing_to_do_sleeps_between_its_renewals(cell: Cell) -> None:
    until(cell.far.hellos)
    cell.far.down()
    cell.far.lease_ms = 4_500
    cell.far.up()
    until(lambda: cell.far.renewals() and len(cell.far.hellos()) == 2)
    first = cell.far.renewals()
    until(lambda: cell.far.renewals() > first)
    before = wakings(cell.agent.pid)
    until(lambda: cell.far.renewals() > first + 2)  # 3 s, in which polling at 10 Hz would wake it 30 times
    assert wakings(cell.agent.pid) - before < 20


def test_own_address_leads_to_the_control_plane() -> None:
    assert own_address("http://127.0.0.1:80") == "127.0.0.1"
    assert own_address(None) == "127.0.0.1"
