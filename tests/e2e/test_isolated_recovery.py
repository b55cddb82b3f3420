"""Jobs that are kept apart train, recover and go on from their checkpoints as any other, bit for bit."""

import json
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from live_platform import Platform, alive, until
from test_main_job import digest, tiny
from test_recovery import losses, pids

from phalanx.core.views import AttemptView

pytestmark = pytest.mark.needs_root


class Apart(Platform):
    """One that was told to keep jobs apart."""

    def up(self) -> None:
        self.run("up", "--port", "0", "--cpu-slots", "2", "--isolation", "uid")


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    platform = Apart(tmp_path_factory.mktemp("apart"))
    platform.up()
    yield platform
    platform.run("down", "--force")


@pytest.fixture(scope="module")
def readable(prepared: Path) -> Iterator[Path]:
    """The data where any user may read it; that of these tests lies in a closed folder."""
    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))
    folder.chmod(0o755)
    shutil.copytree(prepared, folder / "tokens")
    yield folder / "tokens"
    shutil.rmtree(folder)


def test_rank_zero_and_then_all_are_killed_and_every_bit_is_as_undisturbed(apart: Platform, readable: Path) -> None:
    undisturbed = apart.finished(apart.submit(tiny(readable)))
    job = apart.submit(tiny(readable, recovery={"in_gang": True}, max_restarts=1))
    before = pids(apart.at_step(job, 20).attempts[-1])
    owners = {Path(f"/proc/{pid}").stat().st_uid for pid in before.values()}
    assert len(owners) == 1 and owners.isdisjoint({0, os.getuid()})
    attempt = apart.home / "node" / "attempts" / f"{job}.1"
    until(lambda: list(attempt.glob("spare-*.log")))
    os.kill(before[0], signal.SIGKILL)

    def recovered() -> AttemptView | None:
        with apart.client() as client:
            last = client.job(job).attempts[-1]
        return last if last.recoveries else None

    after = pids(until(recovered))
    assert after[1] == before[1] and after[0] != before[0] and not alive(before[0])
    os.kill(json.loads((attempt / "shim-pid.json").read_bytes())["pid"], signal.SIGKILL)
    view = apart.finished(job)
    assert len(view.attempts) == 2
    assert losses(apart, job) == losses(apart, undisturbed.id)
    assert digest(apart, view.model) == digest(apart, undisturbed.model)
    assert "jobs are kept apart" in apart.run("status").stdout
    assert not list((apart.home / "node" / "uids").iterdir()), "every user is free again"
    assert apart.run("artifacts", "ls", job).returncode == 0
