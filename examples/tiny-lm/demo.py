"""The main job, end to end: prepare data, start the platform, train, kill a rank, resume, and check what came out.

`make demo`, or `make demo DEMO_ARGS="--seed S --kill-step N"`, or `DEMO_ARGS=--no-kill`. Everything lives in .demo/, and
everything it starts it stops. Ends with exit code 1 and the reason when any promise of the summary does not hold.
"""

import argparse
import dataclasses
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml
from killing import REPLAYED_MIN, Kill, choose

from phalanx.client import Client, connect
from phalanx.core.records import StepRecord
from phalanx.core.units import device_seconds
from phalanx.core.views import JobView, LedgerView, ModelView

ROOT: Final = Path(__file__).resolve().parents[2]
SCRATCH: Final = ROOT / ".demo"
HOME: Final = SCRATCH / "home"
DATA: Final = SCRATCH / "data"
JOB_FILE: Final = ROOT / "examples" / "tiny-lm" / "job.yaml"
RATIO_MAX: Final = 0.7


@dataclasses.dataclass(frozen=True, slots=True)
class Replay:
    """Steps that the second attempt did again, and whether every reduced loss was the same float."""

    steps: int
    identical: bool


class DemoStopped(Exception):
    """The story cannot go on; says why."""


def main() -> int:
    options = arguments()
    started = time.monotonic()
    job = yaml.safe_load(JOB_FILE.read_text())
    every, steps, world_size = job["checkpoint"]["every"], job["hyperparameters"]["steps"], int(job["resources"]["gpus"])
    entropy = options.seed if options.seed is not None else random.SystemRandom().randrange(2**32)
    try:
        kill = None if options.no_kill else choose(every, steps, world_size, options.kill_step, random.Random(entropy))
    except ValueError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 2
    clean_scratch()
    try:
        summary, problems = run(kill, options.seed or 0)
    except DemoStopped as error:
        summary, problems = {}, [str(error)]
    finally:
        phalanx("down", "--force")
    summary = {"ok": not problems, **summary, "seconds": round(time.monotonic() - started, 1)}
    (SCRATCH / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    print(json.dumps(summary, indent=2))
    for problem in problems:
        print(f"demo: not as promised: {problem}", file=sys.stderr)
    return 1 if problems else 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument(
        "--seed", type=int, help="of weights, data order and the choice of rank and step to kill (default: 0, random kill)"
    )
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--kill-step", type=int, help="SIGKILL a rank right after this step")
    group.add_argument("--no-kill", action="store_true", help="let the run go on undisturbed")
    return parser.parse_args()


def run(kill: Kill | None, seed: int) -> tuple[dict[str, Any], list[str]]:
    """The whole story. Returns the summary and what in it does not hold."""
    say("1. Data: the Python standard library's own sources and texts")
    must("data", "prepare", "stdlib:", "--out", str(DATA))
    say("2. The platform: server, scheduler and this machine's agent, in a scratch home")
    must("up", "--port", "0", "--cpu-slots", "2")
    say("3. The job: two ranks, placed as one gang, followed to the end")
    if kill:
        print(f"   rank {kill.rank} will be killed with SIGKILL right after step {kill.step}; watch the restart")
    arguments = ["submit", str(JOB_FILE), "--follow", "--set", f"data.path={DATA}", "--set", f"hyperparameters.seed={seed}"]
    if kill:
        arguments += ["--set", f"env.PHALANX_FAULT=sigkill rank={kill.rank} step={kill.step} attempt=1"]
    phalanx(*arguments)
    with connect(HOME) as client:
        return report(client, kill)


def report(client: Client, kill: Kill | None) -> tuple[dict[str, Any], list[str]]:
    """What came of the job, shown as its user would ask for it."""
    jobs = client.jobs()
    if not jobs:
        raise DemoStopped("the job was not accepted")
    job = jobs[0]
    replay = replayed(client, job)
    say("4. The resume")
    print(f"   {job.restarts} restart(s); {replay.steps} steps done again; losses identical as float hex: {yes(replay.identical)}")
    ledger = client.ledger()
    if job.model is None:
        return {"kill_step": kill.step if kill else None}, [f"the job ended without a model: {job.outcome}: {job.detail}"]
    model = client.model(*split_model(job.model))
    say("5. A sample of what it learned")
    must("model", "sample", job.model, "--prompt", "def ", "--tokens", "48")
    say("6. The lineage, the cost and the ledger")
    must("model", "show", job.model)
    must("ledger", job.id)
    must("ledger")
    summary = summary_of(job, kill, replay, model, ledger)
    return summary, [*broken(summary, kill, job), *over_one_epoch(job)]


def summary_of(job: JobView, kill: Kill | None, replay: Replay, model: ModelView, ledger: LedgerView) -> dict[str, Any]:
    return {
        "restarts": job.restarts,
        "kill_step": kill.step if kill else None,
        "replayed_steps": replay.steps,
        "replayed_losses_identical": replay.identical,
        "val_loss_first": model.metrics.get("val_loss_first"),
        "val_loss_final": model.metrics.get("val_loss_final"),
        "weights_digest": model.weights_digest,
        "model": job.model,
        "ledger_balanced": ledger.balanced and sum(ledger.categories.values()) == ledger.capacity,
        "device_seconds": round(device_seconds(ledger.capacity), 1),
    }


def broken(summary: Mapping[str, Any], kill: Kill | None, job: JobView) -> list[str]:
    """Which promises do not hold, in words."""
    first, final = summary["val_loss_first"], summary["val_loss_final"]
    promises = [
        (job.outcome == "succeeded", f"the job {job.outcome}: {job.detail}"),
        (summary["restarts"] == (1 if kill else 0), f"restarts = {summary['restarts']}"),
        (
            summary["replayed_steps"] >= REPLAYED_MIN if kill else summary["replayed_steps"] == 0,
            f"replayed_steps = {summary['replayed_steps']}",
        ),
        (summary["replayed_losses_identical"], "a step done again gave another loss"),
        (
            first is not None and final is not None and final <= RATIO_MAX * first,
            f"held-out loss went from {first} to {final} only",
        ),
        (summary["ledger_balanced"], "the ledger does not sum to capacity"),
    ]
    return [words for holds, words in promises if not holds]


def over_one_epoch(job: JobView) -> list[str]:
    manifest = json.loads((DATA / "manifest.json").read_text())
    seen = sum(step.tokens for step in final_steps(connect(HOME), job).values())
    tokens = manifest["splits"]["train"]["tokens"]
    return [] if seen < tokens else [f"{seen} tokens seen is not under one epoch of {tokens}"]


def replayed(client: Client, job: JobView) -> Replay:
    """Compares every step that more than one attempt recorded, on every rank."""
    seen: dict[tuple[int, int], set[str]] = {}
    times: dict[tuple[int, int], set[str]] = {}
    for attempt, step in all_steps(client, job):
        seen.setdefault((step.rank, step.step), set()).add(step.loss_hex)
        times.setdefault((step.rank, step.step), set()).add(attempt)
    again = {key for key, attempts in times.items() if len(attempts) > 1}
    return Replay(len({step for _, step in again}), all(len(seen[key]) == 1 for key in again))


def all_steps(client: Client, job: JobView) -> list[tuple[str, StepRecord]]:
    found: list[tuple[str, StepRecord]] = []
    after = ""
    while True:
        page = client.steps(job.id, after=after)
        found += zip(page.attempts, page.steps, strict=True)
        if page.next == after:
            return found
        after = page.next


def final_steps(client: Client, job: JobView) -> dict[int, StepRecord]:
    with client:
        return {step.step: step for _, step in all_steps(client, job) if step.rank == 0}


def split_model(model: str) -> tuple[str, int]:
    name, _, version = model.partition(":")
    return name, int(version)


def clean_scratch() -> None:
    """An earlier demo that was interrupted may have left its platform running: stop it before its home goes."""
    if (HOME / "run").exists():
        phalanx("down", "--force")
    shutil.rmtree(SCRATCH, ignore_errors=True)
    HOME.mkdir(parents=True)


def phalanx(*arguments: str) -> int:
    """Types the command as a user would, showing it."""
    shown = " ".join(f"'{word}'" if " " in word else word for word in arguments)
    print(f"\n$ phalanx {shown}".replace(f"{ROOT}/", ""), flush=True)
    command = [str(Path(sys.executable).parent / "phalanx"), *arguments]
    return subprocess.run(command, check=False, env={**os.environ, "PHALANX_HOME": str(HOME)}, cwd=ROOT).returncode


def must(*arguments: str) -> None:
    """Raises DemoStopped when the command fails; its own words on the terminal say why."""
    if code := phalanx(*arguments):
        raise DemoStopped(f"`phalanx {' '.join(arguments)}` ended with exit code {code}")


def say(text: str) -> None:
    print(f"\n== {text}", flush=True)


def yes(value: bool) -> str:
    return "yes" if value else "no"


if __name__ == "__main__":
    sys.exit(main())
