"""A secret's value from the command line to the ranks, and nowhere else."""

import base64
import contextlib
import hashlib
import json
import os
import pty
import subprocess
from pathlib import Path

import httpx
from live_platform import BIN, Platform, until

CANARY = "canary-3f9c1b7e-5a2d"
RANK = """
import hashlib, os, pathlib, sys, time
assert hashlib.sha256(os.environ["CANARY"].encode()).hexdigest() == sys.argv[1], "another value came"
print("given", os.environ["RANK"], flush=True)
while not pathlib.Path(os.environ["DONE"]).exists():
    time.sleep(0.05)
print("the value is " + os.environ["CANARY"] + " as you see" if "SHOW" in os.environ else "nothing shown")
"""


def stored(platform: Platform, name: str, value: str) -> None:
    """From standard input, as a pipe gives it."""
    argv = [str(BIN), "secret", "set", name]
    done = subprocess.run(argv, input=value + "\n", env=platform.environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert value not in done.stdout + done.stderr


def submitted(platform: Platform, done: Path, **env: str) -> str:
    digest = hashlib.sha256(CANARY.encode()).hexdigest()
    spec = {
        "name": "keeper",
        "kind": "train",
        "entrypoint": ["python", "-c", RANK, digest],
        "secrets": ["CANARY"],
        "env": {"DONE": str(done), **env},
        "resources": {"gpus": "2"},
        "max_restarts": 0,
    }
    return platform.submit(spec)


def holders(home: Path) -> list[str]:
    """Files of the home with the value in them, plain or in a usual dress."""
    raw = CANARY.encode()
    dresses = (raw, base64.b64encode(raw), raw.hex().encode(), json.dumps(CANARY)[1:-1].encode())
    files = [path for path in home.rglob("*") if path.is_file() and not path.is_symlink()]
    assert any(path.name == "phalanx.db" for path in files)
    assert any(path.name == "shim.json" for path in files) or not list(home.glob("node/attempts/*"))
    return [str(path) for path in files if any(dress in path.read_bytes() for dress in dresses)]


def answers(platform: Platform, job: str) -> str:
    """Everything that the API says of the job, and the command line where it says more, errors included."""
    commands = [
        ("describe", job),
        ("secret", "ls"),
        ("secret", "set", "CANARY", "--from-file", "/nowhere"),
        ("secret", "rm", "OTHER"),
    ]
    said = [platform.run(*words, check=False) for words in commands]
    paths = ["", "/why", "/events", "/steps", "/logs", "/logs?rank=1", "/artifacts"]
    asked = [f"/jobs/{job}{path}" for path in paths] + ["/jobs", "/events", "/status", "/ledger", "/models", "/nodes", "/secrets"]
    token = (platform.home / "token").read_text().strip()
    with platform.client() as client, httpx.Client(trust_env=False, verify=False) as http:
        seen = [http.get(f"{client.url}/api/v1{path}", headers={"Authorization": f"Bearer {token}"}) for path in asked]
    assert all(answer.is_success for answer in seen)
    return "".join([one.stdout + one.stderr for one in said] + [answer.text + str(answer.headers) for answer in seen])


def printed(platform: Platform, job: str, rank: int) -> str:
    return platform.run("logs", job, "--rank", str(rank), check=False).stdout


def test_a_value_reaches_the_ranks_and_is_found_nowhere_else(platform: Platform, tmp_path: Path) -> None:
    stored(platform, "CANARY", CANARY)
    job = submitted(platform, tmp_path / "done")
    until(lambda: all(f"given {rank}" in printed(platform, job, rank) for rank in (0, 1)))
    assert holders(platform.home) == []
    assert CANARY not in answers(platform, job)
    (tmp_path / "done").touch()
    platform.finished(job)
    assert holders(platform.home) == []
    assert CANARY not in answers(platform, job)
    assert (platform.home / "secret.key").stat().st_mode & 0o777 == 0o600


def test_what_a_rank_prints_of_it_is_struck_out_when_shown(platform: Platform, tmp_path: Path) -> None:
    stored(platform, "CANARY", CANARY)
    (tmp_path / "done").touch()
    job = submitted(platform, tmp_path / "done", SHOW="1")
    platform.finished(job)
    assert "the value is *** as you see" in platform.run("logs", job).stdout
    assert CANARY not in answers(platform, job)


def test_an_unknown_secret_is_refused_at_submit_and_one_removed_meanwhile_ends_the_job(platform: Platform, tmp_path: Path) -> None:
    spec = {"name": "asks", "entrypoint": "true", "kind": "service", "secrets": ["GONE"], "resources": {"gpus": "2"}}
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps(spec))
    refused = platform.run("submit", str(path), check=False)
    assert refused.returncode == 2
    assert "secrets is 'GONE'" in refused.stderr and "phalanx secret set GONE" in refused.stderr
    stored(platform, "GONE", "soon to go")
    holding = platform.submit({"name": "holder", "entrypoint": "sleep 600", "resources": {"gpus": "2"}})
    job = platform.submit(spec)
    platform.run("secret", "rm", "GONE")
    platform.run("cancel", holding)
    with platform.client() as client:
        view = client.wait(job, timeout_s=240)
    assert view.outcome == "failed"
    assert "secret GONE is not stored any more" in view.detail and "phalanx retry" in view.detail
    assert len(view.attempts) == 1


def test_a_terminal_is_asked_without_echo(platform: Platform) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(BIN, [str(BIN), "secret", "set", "TYPED"], platform.environ)
    said = b""
    while b"Value of TYPED" not in said:
        said += os.read(terminal, 1024)
    os.write(terminal, CANARY.encode() + b"\n")
    with contextlib.suppress(OSError):  # Linux's way to say that the other end is gone
        while more := os.read(terminal, 1024):
            said += more
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, said
    assert b"Stored TYPED" in said
    assert CANARY.encode() not in said
    with platform.client() as client:
        assert "TYPED" in [view.name for view in client.secrets()]
