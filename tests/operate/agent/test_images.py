"""How ranks are started inside an image: the argument vectors of podman, apptainer and enroot, and what never gets into them."""

import asyncio
import csv
import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from phalanx.core import features
from phalanx.core.devices import CPU_SLOT, Device, NodeShape
from phalanx.core.errors import SetupError
from phalanx.core.ids import AttemptId, NodeId
from phalanx.core.messages import Launch
from phalanx.operate.agent import images
from phalanx.operate.agent.abilities import abilities
from phalanx.operate.agent.attempts import accept
from phalanx.operate.agent.images import Container, Mount, Runtime, RuntimeName, contained_starts, find_runtime
from phalanx.operate.agent.launch_env import Paths, RankStart, rank_starts
from phalanx.operate.agent.surroundings import surroundings

GPUS = tuple(Device(index, "H100", "NVIDIA H100", 80 * 10**9, f"GPU-{index}") for index in range(2))
SHAPE = NodeShape(NodeId("a"), "127.0.0.1", GPUS, 8.0, 2**30, (29500, 29600))
OUTER = {
    "PATH": "/usr/bin",
    "HOME": "/root",
    "AWS_KEY": "of the agent",
    "CONTAINERS_CONF": "/c",
    "PHALANX_HOME": "/h",
    "TOKEN": "outer",
}


def launch(**changes: Any) -> Launch:
    values: dict[str, Any] = {
        "attempt": AttemptId("demo-1.1"), "argv": ("python", "train.py", "--x"), "python": "",
        "env": {"MINE": "a\nb", "PATH": "/opt/bin"},
        "code": "", "folder": "/jobs/demo-1", "first_rank": 2, "world_size": 4, "node_rank": 1, "num_nodes": 2, "devices": (0, 1),
        "cpus": 0.0, "master_address": "127.0.0.1", "master_port": 29501, "hyperparameters": {}, "checkpoint_every": 1,
        "checkpoint_keep_last": 1, "restarts": 0, "image": "registry.example/team/train:1", "secrets": ("TOKEN",),
    }  # fmt: skip
    return Launch(**{**values, **changes})


def container(name: RuntimeName, image: str = "registry.example/team/train:1", **changes: Any) -> Container:
    mounts = (Mount("/jobs/demo-1"), Mount("/node/attempts/demo-1.1"), Mount("/run/phalanx"), Mount("/data, v2", read_only=True))
    made = Container(
        Runtime(name, f"/usr/bin/{name}"), image, "phalanx-x", "/jobs/demo-1/work-1", mounts, GPUS, ("TOKEN",), (1000, 100),
        Path("/node/images"),
    )  # fmt: skip
    return replace(made, **changes)


def first(name: RuntimeName, image: str = "registry.example/team/train:1", **changes: Any) -> RankStart:
    paths = Paths("/node/attempts/demo-1.1", "/run/phalanx/agent.sock", "/venv/bin/python")
    return contained_starts(launch(), SHAPE, paths, OUTER, container(name, image, **changes))[0]


def after(argv: tuple[str, ...], option: str) -> list[str]:
    return [word for before, word in pairwise(argv) if before == option]


def test_podman_shares_all_but_the_file_system() -> None:
    argv = first("podman").argv
    assert argv[:3] == ("/usr/bin/podman", "run", "--rm")
    assert {"--network=host", "--ipc=host", "--pid=host", "--user=1000:100", "--userns=keep-id"} <= set(argv)
    assert "--workdir=/jobs/demo-1/work-1" in argv
    assert [word for word in argv if word.startswith("--device")] == ["--device=nvidia.com/gpu=0", "--device=nvidia.com/gpu=1"]
    assert argv[-5:] == ("--pull=never", "registry.example/team/train:1", "python", "train.py", "--x")
    assert "--name=phalanx-x-2" in argv
    mounts = [next(csv.reader([words])) for words in after(argv, "--mount")]
    assert ["type=bind", "source=/jobs/demo-1", "destination=/jobs/demo-1"] in mounts
    assert ["type=bind", "source=/data, v2", "destination=/data, v2", "ro"] in mounts
    assert {mount[1] for mount in mounts} >= {"source=/node/attempts/demo-1.1", "source=/run/phalanx"}


def test_podman_as_root_keeps_root() -> None:
    argv = first("podman", user=(0, 0)).argv
    assert "--user=0:0" in argv
    assert "--userns=keep-id" not in argv


@pytest.mark.parametrize("name", ["podman", "apptainer", "enroot"])
def test_every_rank_variable_goes_in_and_nothing_of_the_agent(name: RuntimeName) -> None:
    start = first(name)
    expected = {"RANK": "2", "LOCAL_RANK": "0", "WORLD_SIZE": "4", "MINE": "a\nb", "PHALANX_MARK": "demo-1.1"}
    expected |= {"PHALANX_SOCKET": "/run/phalanx/agent.sock", "CUDA_VISIBLE_DEVICES": "GPU-0,GPU-1"}
    assert expected.items() <= start.env.items()
    assert not {"AWS_KEY", "PHALANX_HOME", "TOKEN"} & set(start.env)
    assert (start.env["PATH"], start.env["HOME"]) == ("/usr/bin", "/root"), "the tool itself is found as outside"
    if name == "apptainer":  # its environment goes inside as it is
        assert start.env["APPTAINERENV_PATH"] == "/opt/bin"
    else:
        inside = after(start.argv, "--env")
        assert {*expected, "TOKEN", "PATH=/opt/bin"} <= set(inside)
        assert not {"AWS_KEY", "HOME"} & set(inside)


@pytest.mark.parametrize("name", ["podman", "apptainer", "enroot"])
def test_no_value_is_readable_in_the_arguments(name: RuntimeName) -> None:
    start = first(name)
    assert not [word for word in start.argv if "a\nb" in word or "outer" in word or "agent.sock" in word]


def test_a_recipe_runs_the_images_python() -> None:
    paths = Paths("/f", "/s/agent.sock", "/venv/bin/python")
    started = contained_starts(launch(argv=("", "-m", "phalanx.job.train", "llama")), SHAPE, paths, OUTER, container("podman"))
    assert started[0].argv[-4:] == ("python3", "-m", "phalanx.job.train", "llama")
    assert [start.rank for start in started] == [2, 3]
    assert started[1].log == "/f/rank-3.log"


def test_apptainer_and_enroot_start_from_a_file_that_was_fetched_once() -> None:
    apptainer, enroot = first("apptainer").argv, first("enroot").argv
    file = str(images.image_file(container("apptainer")))
    assert file.startswith("/node/images/")
    assert apptainer[:2] == ("/usr/bin/apptainer", "exec")
    assert "--nv" in apptainer
    assert apptainer[-4:] == (file, "python", "train.py", "--x")
    assert enroot[:2] == ("/usr/bin/enroot", "start")
    assert enroot[enroot.index(file) + 1 :] == (
        "sh",
        "-c",
        'cd "$0" && exec "$@"',
        "/jobs/demo-1/work-1",
        "python",
        "train.py",
        "--x",
    )
    assert first("enroot").env["NVIDIA_VISIBLE_DEVICES"] == "GPU-0,GPU-1"
    assert "--nv" not in first("apptainer", gpus=()).argv


@pytest.mark.parametrize(
    ("name", "image", "expected"),
    [
        ("podman", "python:3.12", ("pull", "python:3.12")),
        ("apptainer", "python:3.12", ("pull", "/into", "docker://python:3.12")),
        ("apptainer", "oras://registry.example/x:1", ("pull", "/into", "oras://registry.example/x:1")),
        ("enroot", "python:3.12", ("import", "--output", "/into", "docker://python:3.12")),
        ("enroot", "registry.example:5000/team/x:1", ("import", "--output", "/into", "docker://registry.example:5000#team/x:1")),
    ],
)
def test_how_an_image_is_fetched(name: RuntimeName, image: str, expected: tuple[str, ...]) -> None:
    assert images.fetch_command(container(name, image), Path("/into"))[1:] == expected


@pytest.mark.parametrize(
    ("name", "image", "words"),
    [
        ("podman", "/srv/root", ("--rootfs", "/srv/root:O")),
        ("podman", "/srv/train.tar", ("docker-archive:/srv/train.tar",)),
        ("apptainer", "/srv/train.sif", ("/srv/train.sif",)),
        ("enroot", "/srv/train.sqsh", ("/srv/train.sqsh",)),
    ],
)
def test_an_image_may_be_a_path_of_the_node(name: RuntimeName, image: str, words: tuple[str, ...]) -> None:
    argv = first(name, image).argv
    start = argv.index(words[0])
    assert argv[start : start + len(words)] == words
    assert "--pull=never" not in argv


def only(*names: str) -> Callable[[str], str | None]:
    return lambda name: f"/bin/{name}" if name in names else None


def test_the_first_tool_that_is_there_is_taken() -> None:
    assert find_runtime(only("enroot", "apptainer")) == Runtime("apptainer", "/bin/apptainer")
    assert find_runtime(only("enroot", "podman")) == Runtime("podman", "/bin/podman")
    assert find_runtime(only("docker")) is None


def test_only_a_node_with_a_tool_says_that_it_runs_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert features.IMAGE not in abilities()
    assert features.LOCK in abilities(), "uv came with the platform"
    (tmp_path / "podman").write_text("#!/bin/sh\n")
    (tmp_path / "podman").chmod(0o755)
    assert features.IMAGE in abilities()


def test_a_node_without_a_tool_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    folder = accept(tmp_path / "attempts", launch(), 1)
    with pytest.raises(SetupError, match="none of podman, apptainer and enroot"):
        asyncio.run(surroundings(folder, SHAPE, tmp_path / "agent.sock", None, OUTER))


IN_STORE = {"PHALANX_DATA": "s3://bucket/corpus"}


@pytest.mark.parametrize(
    ("env", "outer", "folder"),
    [
        (IN_STORE, {"PHALANX_DATA_CACHE": "{}/node", "PHALANX_DATA_CACHE_LIMIT": "9GB"}, "node"),
        (IN_STORE, {"XDG_CACHE_HOME": "{}/xdg"}, "xdg/phalanx/data"),
        (IN_STORE | {"PHALANX_DATA_CACHE": "{}/job's"}, {"PHALANX_DATA_CACHE": "{}/node"}, "job's"),
        (IN_STORE, {"PHALANX_DATA_CACHE": "/dev/null/none"}, ""),
        ({"PHALANX_DATA": "/data/folder"}, {"PHALANX_DATA_CACHE": "{}/node"}, ""),
    ],
)
def test_a_container_reads_through_the_cache_of_its_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, env: dict[str, str], outer: dict[str, str], folder: str
) -> None:
    """Or each would fetch the data again, into a layer of its own that goes with it."""
    env, outer = ({name: text.replace("{}", str(tmp_path)) for name, text in one.items()} for one in (env, outer))
    (tmp_path / "image.sif").touch()
    (tmp_path / "apptainer").write_text("#!/bin/sh\n")
    (tmp_path / "apptainer").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    accepted = accept(tmp_path / "attempts", launch(image=str(tmp_path / "image.sif"), env=env), 1)
    made = asyncio.run(surroundings(accepted, SHAPE, tmp_path / "agent.sock", None, outer)).container
    assert made is not None
    start = contained_starts(accepted.accepted.launch, SHAPE, Paths("/node", "/s", "/p"), outer, made)[0]
    if folder:
        assert Mount(str(tmp_path / folder)) in made.mounts and (tmp_path / folder).is_dir()
        assert start.env["PHALANX_DATA_CACHE"] == str(tmp_path / folder)
        assert start.env.get("PHALANX_DATA_CACHE_LIMIT") == outer.get("PHALANX_DATA_CACHE_LIMIT")
    else:
        assert "PHALANX_DATA_CACHE" not in start.env and not any("cache" in mount.path for mount in made.mounts)
    log = (accepted.path / "rank-2.log").read_text() if (accepted.path / "rank-2.log").exists() else ""
    assert ("/dev/null/none" in log) == ("none" in outer.get("PHALANX_DATA_CACHE", "")), "whose data it then fetches alone"


def test_ranks_outside_a_container_hear_of_it_too() -> None:
    """And of nothing else of ours."""
    outer = {"PHALANX_DATA_CACHE": "/scratch/cache", "PHALANX_DATA_CACHE_LIMIT": "1TB", "PHALANX_HOME": "/h"}
    paths = Paths("/node", "/s", "/p")
    env = rank_starts(launch(image=""), SHAPE, paths, outer)[0].env
    assert {name: env.get(name) for name in outer} == {**outer, "PHALANX_HOME": None}
    own = rank_starts(launch(image="", env={"PHALANX_DATA_CACHE": "/mine"}), SHAPE, paths, outer)[0].env
    assert own["PHALANX_DATA_CACHE"] == "/mine"


def test_cpu_slots_are_no_gpus() -> None:
    slots = tuple(Device(index, CPU_SLOT, "CPU slot") for index in range(2))
    assert images.gpus_of(launch(), replace(SHAPE, devices=slots)) == ()
    assert images.gpus_of(launch(devices=(1,)), SHAPE) == (GPUS[1],)


def test_contained_ranks_get_no_pid_namespace(tmp_path: Path) -> None:
    """podman writes down pids, which its later calls would take for those of other processes."""
    folder = accept(tmp_path / "attempts", launch(folder=str(tmp_path / "jobs")), 1)
    ordered = []
    for inside in (container("podman"), None):
        folder.order_shim(SHAPE, Path("/s/agent.sock"), Path("/s/x.sock"), "/bin/python", OUTER, inside)
        ordered.append(json.loads((folder.path / "shim.json").read_text())["own_pids"])
    assert ordered == [False, True]
