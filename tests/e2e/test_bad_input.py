"""Bad input, as a user meets it: one clear error with the field, the value and what to change; nothing half-done."""

import json
import os
import re
import resource
import socket
import sqlite3
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from live_platform import BIN, Platform, alive

from phalanx.core.errors import Exit

ERROR = re.compile(r"Error: (?P<field>[\w. -]+?) is (?P<value>.*?): (?P<fix>.+)\Z", re.DOTALL)


def phalanx(
    *words: str, home: Path, prepare: Callable[[], object] | None = None, before: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    environ = Platform(home).environ
    return subprocess.run(
        [*before, str(BIN), *words], env=environ, capture_output=True, text=True, timeout=100, check=False, preexec_fn=prepare
    )


def refused(result: subprocess.CompletedProcess[str], field: str, value: str, fix: str, code: int = Exit.BAD_INPUT) -> None:
    """Exactly one error and nothing else that looks like one, in its three parts, with the documented exit code."""
    assert result.returncode == code, result.stderr
    assert "Traceback" not in result.stderr
    assert result.stderr.count("Error:") == 1
    said = ERROR.search(result.stderr.strip())
    assert said is not None, result.stderr
    assert said["field"] == field
    assert value in said["value"]
    assert fix in said["fix"]
    assert len(result.stderr.strip().splitlines()) <= 3, result.stderr


def tree(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "home"
    phalanx("down", "--force", home=tmp_path / "home")


# The job file

SPECS: list[tuple[Mapping[str, Any], str, str, str]] = [
    ({"name": "x", "entrypiont": ["a"]}, "entrypiont", "a", "did you mean 'entrypoint'"),
    ({"name": "X_1", "entrypoint": ["a"]}, "name", "X_1", "lower-case"),
    ({"name": "x", "entrypoint": ["a"], "resources": {"gpus": "H100:x"}}, "resources.gpus", "H100:x", "TYPE:COUNT"),
    ({"name": "x", "entrypoint": ["a"], "max_duration": "soon"}, "max_duration", "soon", "2h"),
    ({"name": "x", "entrypoint": ["a"], "num_nodes": 0}, "num_nodes", "0", "from 1 to"),
    ({"name": "x"}, "entrypoint", "()", "exactly one"),
    ({"name": "x", "recipe": "lama", "kind": "train"}, "recipe", "lama", "did you mean 'llama'"),
    (
        {"name": "x", "entrypoint": ["a"], "environment": {"python": "p", "image": "i"}},
        "environment",
        "python, image",
        "at most one",
    ),
    ({"name": "x", "entrypoint": ["a"], "environment": {"lock": "r.txt"}}, "workdir", "", "environment.lock is a file of workdir"),
    ({"name": "x", "entrypoint": ["a"], "on_partition": "wait"}, "on_partition", "wait", "'keep' or 'stop'"),
    ({"name": "x", "entrypoint": ["a"], "secrets": ["a-b"]}, "secrets", "a-b", "letters"),
    ({"name": "x", "entrypoint": ["a"], "notify": {"webhook": "ftp://h"}}, "notify.webhook", "ftp://h", "http"),
]


@pytest.mark.parametrize(("spec", "field", "value", "fix"), SPECS, ids=[field for _, field, _, _ in SPECS])
def test_a_field_that_cannot_be(home: Path, tmp_path: Path, spec: Mapping[str, Any], field: str, value: str, fix: str) -> None:
    """Refused before anything is sent: no platform is needed to learn it."""
    job = tmp_path / "job.yaml"
    job.write_text(json.dumps(spec))
    refused(phalanx("submit", str(job), home=home), field, value, fix)
    assert not home.exists()


def test_a_job_file_that_is_none(home: Path, tmp_path: Path) -> None:
    refused(phalanx("submit", str(tmp_path / "absent.yaml"), home=home), "job file", "absent.yaml", "existing YAML file")
    broken = tmp_path / "broken.yaml"
    broken.write_text("name: [x\n")
    refused(phalanx("submit", str(broken), home=home), "job file", "broken.yaml", "not valid YAML at line")
    latin = tmp_path / "latin.yaml"
    latin.write_bytes(b"name: caf\xe9\n")
    refused(phalanx("submit", str(latin), home=home), "job file", "latin.yaml", "UTF-8")


@pytest.mark.parametrize(
    ("words", "value"),
    [(("up", "--cpu-slots", "x"), "'x': write a whole number"), (("ls", "--limit", "0"), "'0': write 1 or more")],
)
def test_an_option_that_cannot_be_is_shown_as_it_was_given(home: Path, words: tuple[str, ...], value: str) -> None:
    result = phalanx(*words, home=home)
    assert result.returncode == Exit.BAD_INPUT
    assert f"Invalid value for '{words[1]}': {value}" in result.stderr
    assert not home.exists()


# Data


def small_files(limit_bytes: int = 20_000) -> Callable[[], None]:
    """A disk that takes no more, as every user can have one: files stop growing. The kernel says EFBIG instead of ENOSPC."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))


def test_a_corpus_that_is_none(home: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty.txt"
    empty.write_text("")
    binary = tmp_path / "binary.txt"
    binary.write_bytes(b"\xff\xfe\x00bad")
    latin = tmp_path / "latin.txt"
    latin.write_bytes("café\n".encode("latin-1") * 100)
    unreadable = Path("/proc/self/mem")  # for root too
    before = tree(tmp_path)
    for path, fix in (
        (empty, "is empty"),
        (binary, "binary"),
        (latin, "UTF-8"),
        (unreadable, "made by the kernel while it is read"),
        (tmp_path / "no", "existing"),
    ):
        result = phalanx("data", "prepare", str(path), "--out", str(tmp_path / "data"), home=home)
        refused(result, "paths", path.name, fix)
    assert tree(tmp_path) == before


def test_a_disk_that_is_full_leaves_no_data_behind(home: Path, tmp_path: Path) -> None:
    text = tmp_path / "words.txt"
    text.write_text("".join(f"the quick brown fox {number} jumps over {number * 7} dogs\n" for number in range(20_000)))
    before = tree(tmp_path)
    words = ("data", "prepare", str(text), "--out", str(tmp_path / "data"), "--vocab-size", "300")
    result = phalanx(*words, home=home, prepare=small_files())
    assert result.returncode == Exit.UNREACHABLE
    assert "nothing was changed, free space or try again" in result.stderr
    assert tree(tmp_path) == before
    assert phalanx(*words, home=home).returncode == Exit.OK


@pytest.fixture(scope="module")
def data(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy that may be damaged."""
    copy = tmp_path_factory.mktemp("copy") / "data"
    subprocess.run(["cp", "-r", str(prepared), str(copy)], check=True)
    return copy


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def test_a_corrupt_shard_is_named_and_trains_nothing(platform: Platform, data: Path) -> None:
    shard = next(path for path in sorted(data.rglob("*.bin")) if "train" in path.name)
    flip(shard, shard.stat().st_size // 2)
    refused(phalanx("data", "show", str(data), home=platform.home), shard.name, "", "")
    spec = {"name": "corrupt", "kind": "train", "recipe": "llama", "data": {"path": str(data)}, "hyperparameters": {"steps": 5}}
    job = platform.submit(spec)
    with platform.client() as client:
        view = client.wait(job, timeout_s=240)
    assert view.outcome == "failed"
    assert "bad input" in view.detail
    assert len(view.attempts) == 1, "what is damaged is damaged the next time too"
    assert shard.name in platform.run("logs", job).stdout


# The platform


def test_a_port_that_is_taken_starts_nothing(home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        refused(phalanx("up", "--port", port, home=home), "port", port, "--port 0 for any free one")
    assert not list(home.glob("run/*.json"))
    assert not (home / "phalanx.db").exists()


def test_a_second_up_changes_nothing_and_does_not_pretend_to(platform: Platform) -> None:
    def pids() -> dict[str, int]:
        with platform.client() as client:
            return dict(client.status().processes)

    before = pids()
    again = platform.run("up")
    assert "was up already" in again.stderr
    with platform.client() as client:
        port = client.url.rpartition(":")[2]
    other = str(int(port) - 1)
    refused(platform.run("up", "--port", other, check=False), "port", other, f"runs on {port} already")
    refused(platform.run("up", "--cpu-slots", "5", check=False), "cpu-slots", "5", "runs with 2 devices already")
    after = pids()
    assert {name: before[name] for name in ("server", "agent")} == {name: after[name] for name in ("server", "agent")}


def test_a_home_of_a_newer_version_is_left_as_it_is(home: Path) -> None:
    assert phalanx("up", "--port", "0", "--cpu-slots", "1", home=home).returncode == Exit.OK
    assert phalanx("down", home=home).returncode == Exit.OK
    with sqlite3.connect(home / "phalanx.db") as database:
        database.execute("update alembic_version set version_num = '9999'")
    database.close()
    refused(phalanx("up", "--port", "0", home=home), "home", str(home), "newer version of phalanx (schema 9999); upgrade phalanx")
    assert not list(home.glob("run/*.json"))


@pytest.mark.needs_root
def test_a_read_only_home_is_named(home: Path) -> None:
    home.mkdir()
    mounted = (
        "unshare",
        "--mount",
        "sh",
        "-c",
        f'mount --bind "{home}" "{home}"; mount -o remount,ro,bind "{home}"; exec "$@"',
        "sh",
    )
    refused(phalanx("up", "--port", "0", home=home, before=mounted), "home", str(home), "make it a writable folder")
    assert tree(home) == set()


def test_a_home_below_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused(phalanx("up", home=tmp_path / "file" / "home"), "home", "file/home", "writable folder")


def test_a_home_that_joined_another_platform_and_a_store_that_was_mistyped_start_nothing(home: Path) -> None:
    (home / "node").mkdir(parents=True)
    joined = {"url": "http://127.0.0.1:1", "node": "n", "credential": "c" * 43}
    (home / "node" / "credential.json").write_text(json.dumps(joined))
    refused(phalanx("up", "--port", "0", home=home), "home", str(home), "agent that joined http://127.0.0.1:1")
    assert not list(home.glob("run/*.json"))
    other, store = home.with_name("other"), home / "no" / "such" / "place"
    refused(phalanx("up", "--port", "0", "--store", str(store), home=other), "--store", str(store), "mend the path")
    assert not store.parent.parent.exists()
    assert not list(other.glob("run/*.json"))


def test_a_full_home_refuses_a_job_whole_and_takes_it_later(home: Path, tmp_path: Path) -> None:
    """The server may write no file beyond 20 MB; the packed workdir is larger."""
    work = tmp_path / "work"
    work.mkdir()
    (work / "weights").write_bytes(os.urandom(24_000_000))
    job = tmp_path / "job.yaml"
    job.write_text(json.dumps({"name": "large", "entrypoint": ["true"], "workdir": str(work)}))
    assert phalanx("up", "--port", "0", "--cpu-slots", "1", home=home, prepare=small_files(20_000_000)).returncode == Exit.OK
    result = phalanx("submit", str(job), home=home)
    assert result.returncode == Exit.UNREACHABLE, result.stderr
    assert "nothing was stored" in result.stderr or "nothing was changed" in result.stderr
    assert result.stderr.count("Error:") == 1
    assert json.loads(phalanx("ls", "-o", "json", home=home).stdout) == []
    assert not [path for path in (home / "blobs").rglob("*") if path.is_file() and path.name != ".lock"]
    phalanx("down", home=home)
    assert phalanx("up", "--port", "0", "--cpu-slots", "1", home=home).returncode == Exit.OK
    assert phalanx("submit", str(job), home=home).returncode == Exit.OK


def test_a_job_that_can_never_fit_is_refused_with_the_smallest_change(platform: Platform, tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(json.dumps({"name": "huge", "entrypoint": ["true"], "resources": {"gpus": 64}}))
    refused(platform.run("submit", str(job), check=False), "resources.gpus", "64", "the largest possible is 2")
    for resources, field, value in (
        ({"cpus": 4000}, "resources.cpus", "4000"),
        ({"memory": "900TiB"}, "resources.memory", "900TiB"),
    ):
        job.write_text(json.dumps({"name": "huge", "entrypoint": ["true"], "resources": resources}))
        refused(platform.run("submit", str(job), check=False), field, value, "the largest possible is")
    job.write_text(json.dumps({"name": "huge", "entrypoint": ["true"], "num_nodes": 9}))
    refused(platform.run("submit", str(job), check=False), "num_nodes", "9", "the largest possible is 1")
    with platform.client() as client:
        assert not [one for one in client.jobs() if one.name == "huge"]


# Checkpoints and models


def test_a_checkpoint_with_a_flipped_bit_is_skipped_by_name_and_the_one_before_is_used(platform: Platform, prepared: Path) -> None:
    spec = {
        "name": "flipped",
        "kind": "train",
        "recipe": "llama",
        "data": {"path": str(prepared)},
        "checkpoint": {"every": 30, "keep_last": 3},
        "hyperparameters": {"steps": 90, "dim": 64, "layers": 2, "heads": 2, "sequence": 64, "batch_per_rank": 8},
        "env": {"PHALANX_FAULT": "sigkill rank=0 step=90 attempt=1"},
        "max_restarts": 0,
    }
    job = platform.submit(spec)
    with platform.client() as client:
        view = client.wait(job, timeout_s=240)
    # The last one was begun before its rank was killed, and written to the end by its keeper, of which nobody has heard yet.
    folder = str(Path(view.checkpoints[0].path).parent)
    newest, before = json.loads(platform.run("checkpoint", "ls", folder, "-o", "json").stdout)[:2]
    shard = next(path for path in sorted(Path(newest["path"]).rglob("*.safetensors")))
    assert platform.run("checkpoint", "verify", job).stdout.count("verified") >= 2
    flip(shard, shard.stat().st_size - 5)
    verified = platform.run("checkpoint", "verify", job, check=False)
    assert verified.returncode == Exit.FAILED and f"{shard.parent.name}/{shard.name}: " in verified.stdout
    platform.run("retry", job)
    view = platform.finished(job)
    assert view.attempts[-1].resumed_step == before["step"]
    said = platform.run("logs", job).stdout
    assert f"{shard.parent.name}/{shard.name}" in said and "does not match its checksum" in said
    assert not [rank.pid for rank in view.attempts[-1].ranks if rank.pid and alive(rank.pid)]


def test_a_damaged_model_is_never_loaded(platform: Platform) -> None:
    with platform.client() as client:
        model = client.model("flipped")
    weights = next(Path(model.path).rglob("*.safetensors"))
    flip(weights, weights.stat().st_size - 5)
    result = platform.run("model", "sample", "flipped", "--prompt", "x", check=False)
    assert result.returncode == Exit.BAD_INPUT
    assert weights.name in result.stderr
    assert "Traceback" not in result.stderr
