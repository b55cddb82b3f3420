"""The script of docs/recovery.md under the real shim: whole, and with rank 0 killed from outside."""

import os
import re
import signal
from dataclasses import replace
from pathlib import Path

from tests.job.checkpoint.gang_launch import ROOT
from tests.job.train.recovery_gang import TIMES, ShimGang, start
from tests.operate.agent.agent_cell import until

_SCRIPT = re.compile(r"```python\n(.*?)```", re.DOTALL)
_SAID = 'print(f"generation {place.generation} step {step}: {sum(losses).item().hex()}", flush=True)'
_PAUSE = '__import__("time").sleep(0.5 if place.generation == 2 and step > 300 else 0)'
_LINE = re.compile(r"generation (\d+) step (\d+): (\S+)")


def said(gang: ShimGang, rank: int) -> list[tuple[int, int, str]]:
    lines = _LINE.findall((gang.folder / f"rank-{rank}.log").read_text())
    return [(int(generation), int(step), loss) for generation, step, loss in lines]


def script(folder: Path, steps: int, patient: bool = False) -> tuple[str]:
    """That of the page, long enough to be disturbed. Patient: who is left alone makes many steps, then one now and then, so
    that the other can come in again before the last one, however long its start takes."""
    found = _SCRIPT.search((ROOT / "docs" / "recovery.md").read_text())
    assert found is not None
    path = folder / "train.py"
    text = found[1].replace("STEPS = 40", f"STEPS = {steps}")
    if patient:
        text = text.replace(f"{_SAID}\n", f"{_SAID}\n        {_PAUSE}\n")
        assert _PAUSE in text
    path.write_text(text)
    return (str(path),)


ENV = {"PHALANX_ATTEMPT": "script-1.1", "PHALANX_JOB": "script-1"}


def test_the_documented_script_goes_on_after_rank_zero_was_killed(tmp_path: Path) -> None:
    gang = start(tmp_path / "a", ENV, program=script(tmp_path, 400), spares=0)
    until(lambda: (gang.folder / "rank-1.log").exists() and len(said(gang, 1)) > 20, 300)
    os.kill(gang.pids()[0], signal.SIGKILL)
    assert gang.end() == [0, 0], gang.log()
    for rank in (0, 1):
        losses: dict[int, set[str]] = {}
        for _, step, loss in said(gang, rank):
            losses.setdefault(step, set()).add(loss)
        assert sorted(losses) == list(range(1, 401))
        assert all(len(seen) == 1 for seen in losses.values()), "steps that were made again are the same"
        assert {generation for generation, _, _ in said(gang, rank)} == {1, 2}


def test_it_goes_on_alone_without_a_spare_and_takes_the_other_in_again(tmp_path: Path) -> None:
    steps = 1000
    times = replace(TIMES, grow_ms=0)
    gang = start(tmp_path / "a", ENV, program=script(tmp_path, steps, patient=True), spares=0, sizes=(1,), times=times)
    until(lambda: (gang.folder / "rank-1.log").exists() and len(said(gang, 1)) > 20, 300)
    os.kill(gang.pids()[0], signal.SIGKILL)
    assert gang.end() == [0, 0], gang.log()
    made = [step for _, step, _ in said(gang, 1)]
    assert sorted(set(made)) == list(range(1, steps + 1))
    assert len(made) <= steps + 1, "one step at most was made again"
    assert {generation for generation, _, _ in said(gang, 1)} == {1, 2, 3}
    assert {generation for generation, _, _ in said(gang, 0)} == {1, 3}
