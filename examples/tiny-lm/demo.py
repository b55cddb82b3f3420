"""The main job, end to end: prepare data, start the platform, train, kill a rank, resume, and check what came out.

`make demo`, or `make demo DEMO_ARGS="--seed S --kill-step N"`, or `DEMO_ARGS=--no-kill`. Everything lives in .demo/, and
everything it starts it stops. Ends with exit code 1 and the reason when any promise of the summary does not hold.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

import yaml
from judging import broken, replayed, summary_of
from killing import Kill, choose

from phalanx.client import Client, connect
from phalanx.core.errors import PhalanxError
from phalanx.core.records import StepRecord
from phalanx.core.views import JobView

ROOT: Final = Path(__file__).resolve().parents[2]
SCRATCH: Final = ROOT / ".demo"
HOME: Final = SCRATCH / "home"
DATA: Final = SCRATCH / "data"
JOB_FILE: Final = ROOT / "examples" / "tiny-lm" / "job.yaml"


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
    summary: dict[str, Any] = {}
    problems: list[str] = ["interrupted"]
    try:
        summary, problems = run(kill, every, options.seed or 0, world_size)
    except (DemoStopped, PhalanxError) as error:
        problems = [str(error)]
    finally:
        if phalanx("down", "--force"):
            problems = [*problems, "`phalanx down --force` failed, so something that was started may still run"]
        summary = {"ok": not problems, **summary, "seconds": round(time.monotonic() - started, 1), "problems": problems}
        (SCRATCH / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    print(json.dumps(summary, indent=2))
    for problem in problems:
        print(f"demo: not as promised: {problem}", file=sys.stderr)
    if not problems:
        print("demo: ok. Everything is in .demo/; to look further: PHALANX_HOME=.demo/home .venv/bin/phalanx up")
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


def run(kill: Kill | None, every: int, seed: int, world_size: int) -> tuple[dict[str, Any], list[str]]:
    """The whole story. Returns the summary and what in it does not hold."""
    say("1. Data: the Python standard library's own sources and texts")
    must("data", "prepare", "stdlib:", "--out", str(DATA))
    say("2. The platform: server, scheduler and this machine's agent, in a scratch home")
    start_platform(world_size)
    say("3. The job: two ranks, placed as one gang, followed to the end")
    if kill:
        print(f"   rank {kill.rank} is made to send itself SIGKILL right after step {kill.step}; watch the restart")
    arguments = ["submit", str(JOB_FILE), "--follow", "--set", f"data.path={DATA}", "--set", f"hyperparameters.seed={seed}"]
    if kill:
        arguments += ["--set", f"env.PHALANX_FAULT=sigkill rank={kill.rank} step={kill.step} attempt=1"]
    phalanx(*arguments)
    with connect(HOME) as client:
        return report(client, kill, every)


def start_platform(world_size: int) -> None:
    """With the GPUs of this machine where there are enough, else with as many CPU slots as the job has ranks."""
    must("up", "--port", "0")
    with connect(HOME) as client:
        enough = client.status().devices_total >= world_size
    if not enough:
        must("down")
        must("up", "--port", "0", "--cpu-slots", str(world_size))


def report(client: Client, kill: Kill | None, every: int) -> tuple[dict[str, Any], list[str]]:
    """What came of the job, shown as its user would ask for it."""
    jobs = client.jobs()
    if not jobs:
        raise DemoStopped("the job was not accepted")
    job = jobs[0]
    steps = all_steps(client, job)
    replay = replayed(steps)
    say("4. The resume")
    print(f"   {job.restarts} restart(s); {replay.steps} steps done again; losses identical as float hex: {yes(replay.identical)}")
    if job.model is None:
        return {"kill_step": kill.step if kill else None}, [f"the job ended without a model: {job.outcome}: {job.detail}"]
    model = client.model(*split_model(job.model))
    say("5. A sample of what it learned")
    must("model", "sample", job.model, "--prompt", "def ", "--tokens", "48")
    say("6. The lineage, the cost and the ledger")
    must("model", "show", job.model)
    must("ledger", job.id)
    must("ledger")
    summary = summary_of(job, kill, replay, model, client.ledger())
    return summary, [*broken(summary, kill, every, job, steps), *over_one_epoch(steps)]


def over_one_epoch(steps: list[tuple[str, StepRecord]]) -> list[str]:
    seen = sum({record.step: record.tokens for _, record in steps}.values())
    tokens = json.loads((DATA / "manifest.json").read_text())["splits"]["train"]["tokens"]
    return [] if seen < tokens else [f"{seen} tokens seen is not under one epoch of {tokens}"]


def all_steps(client: Client, job: JobView) -> list[tuple[str, StepRecord]]:
    found: list[tuple[str, StepRecord]] = []
    after = ""
    while True:
        page = client.steps(job.id, after=after)
        found += zip(page.attempts, page.steps, strict=True)
        if page.next == after:
            return found
        after = page.next


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
    elsewhere = ("PHALANX_URL", "PHALANX_TOKEN", "PHALANX_PORT")  # these would lead to another platform than the demo's
    environ = {name: value for name, value in os.environ.items() if name not in elsewhere}
    return subprocess.run(command, check=False, env={**environ, "PHALANX_HOME": str(HOME)}, cwd=ROOT).returncode


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
