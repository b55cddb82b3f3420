"""What a machine allows is found by trying it, and what was tried does not stick."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from phalanx.core import isolation as names
from phalanx.core.errors import SetupError
from phalanx.core.isolation import Isolation
from phalanx.operate.agent.isolation import found, of_node
from phalanx.operate.home import open_home, set_isolation

ASK = "import json; from phalanx.operate.agent.isolation.found import found; print(json.dumps(found()))"


def here() -> tuple[object, ...]:
    spaces = Path("/proc/self/ns")
    return os.getresuid(), (spaces / "mnt").readlink(), (spaces / "pid").readlink(), Path("/proc/mounts").read_text()


@pytest.mark.needs_root
def test_root_may_do_all_that_is_needed_and_stays_as_it_was() -> None:
    before = here()
    tried = found.found()
    assert [name for name in names.NEEDED if tried[name]] == []
    assert here() == before


@pytest.mark.needs_root
def test_root_without_the_capabilities_is_told_what_is_missing() -> None:
    """As in a container: each is dropped for good, and the trial says so."""
    drop = f"import ctypes; [ctypes.CDLL(None).prctl(24, number, 0, 0, 0) for number in (7, 21)]; {ASK}"
    said = subprocess.run([sys.executable, "-c", drop], capture_output=True, check=True, text=True).stdout
    assert '"uids": ""' not in said and '"mounts": ""' not in said and "Operation not permitted" in said


def test_an_ordinary_user_is_told_what_is_missing() -> None:
    if os.geteuid() == 0:
        become = "import os; os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)"
    else:
        become = "import os"
    program = f"{ASK.split(';')[0]}; from phalanx.operate.agent.isolation.found import trial; {become}; trial()"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True).stdout
    assert '"uids": ""' not in said and '"pids": ""' not in said


def test_a_home_that_asks_for_what_cannot_be_kept_has_no_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_home(tmp_path)
    set_isolation(tmp_path, "uid")
    monkeypatch.setattr(of_node, "found", lambda: dict.fromkeys(names.NEEDED, "Operation not permitted"))
    with pytest.raises(SetupError, match=r"no users of their own .*run the agent as root"):
        of_node.apartness(tmp_path)
    set_isolation(tmp_path, "none")
    assert of_node.apartness(tmp_path).told.mode == "none"


def test_words_that_are_no_mode_are_refused(tmp_path: Path) -> None:
    open_home(tmp_path)
    (tmp_path / "node" / "isolation").write_text("yes\n")
    with pytest.raises(SetupError, match="write none or uid into"):
        of_node.apartness(tmp_path)
    of_node.refuse_unkept(Isolation())
