"""completion: in a real bash, and what the other shells are given."""

import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from phalanx.core.views import JobView, NodeView
from tests.recorded import JOB, RecordedServer, finished_view, job_view, node_view, recorded_server, write_home
from tests.show.cli.terminal import Terminal
from tests.show.cli.test_following import COMMAND, DEADLINE_S, ROOT, environ

BASH = shutil.which("bash") or "bash"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RecordedServer]:
    with recorded_server(tmp_path / "home") as recorded:
        recorded.view("/jobs", tuple[JobView, ...], (job_view(), finished_view(id="other-2"), job_view(id="tiny-lm-9")))
        recorded.view("/nodes", tuple[NodeView, ...], (node_view(), node_view(node="rack2")))
        yield recorded


def completed(tmp_path: Path, *words: str) -> list[str]:
    """What bash offers for the last of `words`, by the script that `phalanx completion bash` prints."""
    program = tmp_path / "bin" / "phalanx"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f'#!/bin/sh\ncd {ROOT} && exec {" ".join(COMMAND)} "$@"\n')
    program.chmod(0o755)
    asked = " ".join(f"'{word}'" for word in ("phalanx", *words))
    script = (
        f"source <(phalanx completion bash) && COMP_WORDS=({asked}) COMP_CWORD={len(words)} && _phalanx_completion phalanx && "
        'printf "%s\\n" "${COMPREPLY[@]}"; complete -p phalanx'
    )
    env = {**environ(tmp_path), "PATH": f"{program.parent}:{environ(tmp_path)['PATH']}"}
    done = subprocess.run(
        [BASH, "--norc", "--noprofile", "-c", script], env=env, capture_output=True, text=True, timeout=DEADLINE_S, check=True
    )
    assert done.stderr == ""
    *found, registered = done.stdout.splitlines()
    assert registered.endswith("_phalanx_completion phalanx")
    return [one for one in found if one]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("no",), ["notebook", "node"]),
        (("node", ""), ["ls", "describe", "drain", "undrain"]),
        (("node", "drain", "--re"), ["--reason"]),
        (("pause", "ti"), [JOB, "tiny-lm-9"]),
        (("pause", JOB, "o"), ["other-2"]),
        (("events", "oth"), ["other-2"]),
        (("node", "drain", "r"), ["rack2"]),
        (("completion", "z"), ["zsh"]),
    ],
)
def test_bash_completes_commands_options_jobs_and_nodes(
    server: RecordedServer, tmp_path: Path, words: tuple[str, ...], found: list[str]
) -> None:
    assert completed(tmp_path, *words) == found


def test_without_a_server_there_are_no_names_and_no_word_about_it(tmp_path: Path) -> None:
    assert completed(tmp_path, "pause", "t") == []
    write_home(tmp_path / "home", "http://127.0.0.1:1")
    assert completed(tmp_path, "pause", "t") == []


def test_a_server_that_does_not_answer_at_once_is_not_waited_for(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections and says nothing
        write_home(tmp_path / "home", f"http://127.0.0.1:{silent.getsockname()[1]}")
        assert completed(tmp_path, "pause", "t") == []


def test_what_a_server_calls_its_jobs_never_reaches_the_shell_unless_it_is_a_plain_name(
    server: RecordedServer, tmp_path: Path
) -> None:
    server.view("/jobs", tuple[JobView, ...], (job_view(id="t$(touch x)"), job_view(id="t;ls"), job_view(id="t-1")))
    assert completed(tmp_path, "pause", "t") == ["t-1"]


def test_zsh_and_fish_get_scripts_of_their_own(terminal: Terminal) -> None:
    zsh, fish = terminal("completion", "zsh"), terminal("completion", "fish")
    assert zsh.out.startswith("#compdef phalanx\n") and fish.out.startswith("complete --command phalanx")
    for shown in (zsh, fish):
        assert "_PHALANX_COMPLETE" in shown.out and "To have it in every shell" in shown.out
    assert terminal("completion", "tcsh").code == 2
