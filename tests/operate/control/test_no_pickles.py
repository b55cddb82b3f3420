"""Whatever somebody sends, no process of the platform makes objects of a pickle: server, scheduler, tracking and agent."""

import ast
import base64
import hashlib
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from phalanx.core import features
from phalanx.core.messages import ArtifactAck, ArtifactSaved
from phalanx.core.profile import FOLDER, SUMMARY, trace_name
from phalanx.storage.hashes import sha256_bytes
from tests.operate.control.live_server import LiveServer, PlayedAgent, until

SRC = Path(__file__).resolve().parents[3] / "src"
UNSAFE = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "torch", "jsonpickle"}
SENTRY = """
import os, sys
def note(event, args):
    if event == "pickle.find_class":
        with open(os.environ["SEEN"], "a") as seen:
            seen.write(f"{os.getpid()} {args[0]}.{args[1]}\\n")
sys.addaudithook(note)
"""
"""Python's own word that an object is looked up by a pickle's name for it (PEP 578)."""


PARTS = ("", "/logs", "/steps", "/curves", "/events", "/artifacts", "/profile", "/why")


class Bomb:
    """Whoever unpickles it makes a file."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.place),)


def imported(path: Path) -> Iterator[str]:
    """First names of what a module imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (one.name.partition(".")[0] for one in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield (node.module or "").partition(".")[0]


def test_nothing_outside_of_a_job_imports_what_unpickles() -> None:
    inside, texts = SRC / "phalanx" / "job", {path: path.read_text() for path in (SRC / "phalanx").rglob("*.py")}
    found = {path for path, text in texts.items() if any(word in text for word in UNSAFE) and UNSAFE & set(imported(path))}
    assert [path for path in found if not path.is_relative_to(inside)] == []
    assert found, "else it was not looked for"
    unpickling = {path.name for path in found if {"pickle"} & set(imported(path))}
    assert unpickling == {"crew_pipe.py", "crew_member.py"}, "between processes of one rank, of their own bytes"
    assert [path for path, text in texts.items() if re.search(r"allow_pickle\s*=\s*True|weights_only\s*=\s*False", text)] == []


def test_the_platforms_processes_load_no_torch_and_nothing_of_a_job() -> None:
    """The modules that each really has, when it is asked."""
    program = (
        "import sys, phalanx.app, phalanx.operate.control.server, phalanx.operate.control.scheduler_process, "
        "phalanx.operate.agent.agent, phalanx.show.cli.main\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules}), *(name for name in sys.modules if '.job' in name))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "phalanx" in loaded and "fastapi" in loaded
    assert not loaded & (UNSAFE - {"pickle", "_pickle", "marshal"}), "those three are the standard library's own affair"
    assert not [name for name in loaded if name.startswith("phalanx.job")]


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LiveServer]:
    """A server of which each process writes down what pickles ask for."""
    (tmp_path / "sentry").mkdir()
    (tmp_path / "sentry" / "sitecustomize.py").write_text(SENTRY)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "sentry"), os.environ.get("PYTHONPATH", str(SRC))]))
    monkeypatch.setenv("SEEN", str(tmp_path / "seen"))
    server = LiveServer(tmp_path / "home")
    server.start()
    yield server
    assert server.end() == 0, server.words()
    assert "Traceback" not in server.words(), server.words()


def test_a_pickle_in_every_place_that_somebody_can_fill_is_never_loaded(watched: LiveServer, tmp_path: Path) -> None:
    """As a packed workdir, an artifact, a trace's summary, records, a log, a secret and a spec; then all of it is read."""
    seen, canary = tmp_path / "seen", tmp_path / "canary"
    bomb = pickle.dumps(Bomb(canary))
    text, sha256 = base64.b64encode(bomb).decode(), sha256_bytes(bomb)
    with PlayedAgent(watched) as agent, watched.http() as http:
        agent.shape = replace(agent.shape, features=(features.SECRETS, features.ARTIFACTS))
        agent.hello()
        assert http.put(f"/blobs/{sha256}", content=bomb).status_code == 204
        assert http.put("/secrets/BOMB", content=text).status_code == 204
        body = {"spec": {"name": "bomb", "entrypoint": "true", "secrets": ["BOMB"], "env": {"B": text}}, "code": sha256}
        job = str(http.post("/jobs", json=body).json()["id"])
        launch = agent.started()
        until(lambda: watched.get(f"/jobs/{job}")["state"] == "running")
        for name in ("model.pt", "weights.pkl", f"{FOLDER}/{trace_name(0, 1, 5)}{SUMMARY}"):
            agent.say(ArtifactSaved(launch.attempt, name, sha256, len(bomb), 1))
            assert agent.hear(ArtifactAck).name == name
        agent.ship("log", launch.attempt, 0, 0, bomb + b"\n")
        agent.ship("records", launch.attempt, 0, 0, bomb + b"\n" + f'{{"kind": "{text}"}}\n'.encode())
        answers = {what: http.get(f"/jobs/{job}{what}") for what in PARTS}
        assert [what for what, answer in answers.items() if answer.status_code != 200] == ["/profile"], "of which none can be read"
        assert http.get(f"/blobs/{sha256}").content == bomb, "what it is to nobody but who fetches it"
        agent.report(launch, 1, "ended", {0: 0})
        until(lambda: watched.get(f"/jobs/{job}")["state"] == "finished")
        until(lambda: watched.get("/status")["outbox"] == 0)  # the tracking process has had its share
    assert not canary.exists() and not seen.exists(), seen.read_text()
    subprocess.run([sys.executable, "-c", f"import pickle; pickle.loads({bomb!r})"], check=True)
    assert canary.is_dir() and ".mkdir" in seen.read_text(), "one process that does load it is seen"
    assert hashlib.sha256(bomb).hexdigest() == sha256
