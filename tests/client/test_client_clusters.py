"""Asking several control planes at once: who may be sent a token, and who counts as away."""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from phalanx.client.clusters import ask, connect_to
from phalanx.core.clusters import Cluster, Clusters
from phalanx.core.errors import SetupError
from phalanx.core.spec import JobSpec
from phalanx.core.views import PlanView
from tests.recorded import Said, recorded_server, said, write_home
from tests.show.cli.test_plan import plan_view

SPEC = JobSpec(name="mine", entrypoint="true")


@pytest.fixture
def token(tmp_path: Path) -> Path:
    file = tmp_path / "cloud.token"
    file.write_text("t" * 43 + "\n")
    file.chmod(0o600)
    return file


@contextmanager
def dripping(done: threading.Event) -> Iterator[str]:
    """A server whose answer comes a byte at a time for half a minute, or until `done`: no single read waits for long."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
                for _ in range(1_500):
                    if done.wait(0.02):
                        return
                    connection.sendall(b" ")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        done.set()
        thread.join()


def test_whose_answer_is_on_its_way_for_too_long_is_away_and_the_others_are_heard(tmp_path: Path, token: Path) -> None:
    done = threading.Event()
    with recorded_server(tmp_path) as server, dripping(done) as url:
        server.on("POST", "/plan", said(PlanView, plan_view()))
        clusters = Clusters(clusters={"slow": Cluster(url=url, token_file=str(token)), "lab": Cluster(home=str(tmp_path))})
        slow, lab = ask(clusters, ("slow", "lab"), SPEC, within_s=3.0)
    assert (slow.away, slow.plan, slow.problem) == (True, None, f"{url} did not answer in 3 s")
    assert lab.plan == plan_view()


def test_a_redirect_takes_the_token_nowhere(tmp_path: Path, token: Path) -> None:
    with recorded_server() as elsewhere, recorded_server() as server:
        server.on("POST", "/plan", Said(302, location=f"{elsewhere.url}/api/v1/plan"))
        clusters = Clusters(clusters={"cloud": Cluster(url=server.url, token_file=str(token))})
        [answer] = ask(clusters, ("cloud",), SPEC)
    assert (answer.away, "answers 302, but not as Phalanx does" in answer.problem) == (True, True)
    assert (len(server.asked), elsewhere.asked) == (1, [])


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
def test_a_token_that_others_may_read_is_not_used(token: Path, mode: int) -> None:
    token.chmod(mode)
    with pytest.raises(SetupError, match="may be read by others of this machine; `chmod 600` it") as caught:
        connect_to("cloud", Cluster(url="https://cloud.example", token_file=str(token)))
    assert caught.value.field == "clusters.cloud.token_file"


def test_what_is_no_file_with_a_token_is_named(tmp_path: Path, token: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    token.write_bytes(b"\xff\xfe")
    for name in ("pipe", "nobody", "a\0b", token.name, ""):
        with pytest.raises(SetupError, match="cannot be read; copy the file `token`") as caught:
            connect_to("cloud", Cluster(url="https://cloud.example", token_file=str(tmp_path / name)))
        assert caught.value.field == "clusters.cloud.token_file"


@pytest.mark.parametrize("url", ["http://far.example", "ftp://h", "https://me:geheim@h"])
def test_no_token_is_read_for_an_address_that_it_may_not_be_sent_to(url: str) -> None:
    with pytest.raises(SetupError) as caught:
        connect_to("cloud", Cluster(url=url, token_file="nobody"))
    assert (caught.value.field, "geheim" in str(caught.value)) == ("clusters.cloud.url", False)


def test_a_home_that_cannot_be_used_is_named_as_the_file_has_it(tmp_path: Path) -> None:
    write_home(tmp_path, "http://127.0.0.1:9")
    (tmp_path / "run" / "server.json").write_text("{}")
    with pytest.raises(SetupError) as caught:
        connect_to("lab", Cluster(home=str(tmp_path)))
    assert (caught.value.field, caught.value.value) == ("clusters.lab.home", str(tmp_path))
