"""Gangs of real processes, with loader processes, killed by SIGKILL in the middle of a step: what the next gang reads joins on
without a gap, a repeat or any clean-up. Case ids: shared/CASES.md."""

import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import IO, Any, cast

from phalanx.job.data.cursor import Cursor

ROOT = Path(__file__).resolve().parents[3]
SEED, STEPS, CHECKPOINT_EVERY = 11, 16, 3
ANSWER_S_MAX = 60


@dataclass(frozen=True, slots=True)
class Leg:
    """world_size ranks of so many loader processes do some steps; then each is killed, the first `parts` having one step more."""

    world_size: int
    processes: int
    steps: int
    parts: int


LEGS = [Leg(3, 2, 5, 1), Leg(1, 0, 1, 0), Leg(2, 1, 6, 2), Leg(4, 0, STEPS, 0)]


def test_d03_t08_gangs_killed_in_the_middle_of_a_step_read_what_one_run_reads(tmp_path: Path) -> None:
    benchmark = histories()
    history = benchmark.history_of(SEED)
    job = benchmark.Job(history, declared=True)
    cursor = tmp_path / "cursor.json"
    read: dict[int, list[Any]] = {}
    resumed_at = []
    for leg in LEGS:
        ranks = [rank(cursor, number, leg) for number in range(leg.world_size)]
        try:
            start = Cursor.from_json(cursor.read_text()).next_step(job.order, job.manifests) if cursor.exists() else 0
            resumed_at.append(start)
            for step in range(start, min(start + leg.steps, STEPS)):
                answers = [ask(each) for each in ranks]
                assert [number for number, _ in answers] == [step] * leg.world_size
                read[step] = [tuple(row) for _, rows in answers for row in rows]
                if (step + 1) % CHECKPOINT_EVERY == 0:
                    cursor.write_text(Cursor.after(step + 1, job.order, job.manifests).to_json())
            for each in ranks[: leg.parts]:
                ask(each)
        finally:
            for each in ranks:
                os.killpg(each.pid, signal.SIGKILL)  # its loader processes are of its group
                each.communicate()
    assert resumed_at == [0, 3, 3, 9], "work after the last cursor is done again"
    assert [read[step] for step in range(STEPS)] == benchmark.undisturbed(history)[:STEPS]


def rank(cursor: Path, number: int, leg: Leg) -> subprocess.Popen[str]:
    arguments = [str(ROOT / "benchmarks"), str(cursor), SEED, number, leg.world_size, leg.processes]
    command = [sys.executable, str(Path(__file__).with_name("order_rank.py")), *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)


def ask(process: subprocess.Popen[str]) -> tuple[int, list[Any]]:
    """The rank's next step and its rows of it."""
    lines_in, lines_out = cast(IO[str], process.stdin), cast(IO[str], process.stdout)
    lines_in.write("next\n")
    lines_in.flush()
    assert select.select([lines_out], [], [], ANSWER_S_MAX)[0], "the rank does not answer"
    step, rows = json.loads(lines_out.readline())
    return step, rows


def histories() -> ModuleType:
    spec = importlib.util.spec_from_file_location("data_histories_for_kills", ROOT / "benchmarks" / "data_histories.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
