"""Random faults of all kinds in one run of two ranks and a spare: it ends with the very bits of a run that nobody touched, every
checkpoint of it restores, and nothing is left behind. 8 faults here; 200 with `make soak`, which takes as long as half an hour."""

import os
import random
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from live_platform import Platform, until
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from soak.disturbed import Disturbed
from soak.left_behind import attempts, descriptors, listening, processes, shared_memory, sockets
from soak.random_faults import faults, flips
from test_main_job import digest
from test_recovery import losses

from phalanx.core.views import JobView
from phalanx.job.checkpoint import manifest
from phalanx.job.checkpoint.commit import RNG
from phalanx.job.checkpoint.folder import Folder
from phalanx.job.checkpoint.owners import DTYPES
from phalanx.job.checkpoint.restore import load_state
from phalanx.job.checkpoint.whole import open_checkpoint, spec_of

FAULTS = int(os.environ.get("PHALANX_SOAK_FAULTS") or (200 if os.environ.get("PHALANX_SOAK") else 8))
SEED = int(os.environ.get("PHALANX_SOAK_SEED") or random.SystemRandom().randrange(10**6))
STEPS = 20 * FAULTS + 80
EVERY = 20
RANKS = 2
FLIPS = max(1, FAULTS // 20)
LOOKS = 4
"""Steps from one look for corruption to the next, in the runs whose bits are flipped."""
SHAPE = {
    "dim": 16,
    "layers": 2,
    "heads": 2,
    "ffn_dim": 24,
    "sequence": 16,
    "batch_per_rank": 2,
    "warmup_steps": 2,
    "eval_batches": 2,
}


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """Its agent is killed, so nobody else may use it; the test ends it."""
    platform = Platform(tmp_path_factory.mktemp("home"))
    platform.up()
    yield platform
    platform.run("down", "--force")


def soaked(prepared: Path, **more: Any) -> dict[str, Any]:
    return {
        "name": "soak",
        "kind": "train",
        "recipe": "llama",
        "resources": {"gpus": RANKS},
        "data": {"path": str(prepared)},
        "checkpoint": {"every": EVERY, "keep_last": STEPS},
        "max_restarts": 10 * FAULTS,
        "hyperparameters": {**SHAPE, "steps": STEPS, "seed": 11},
        **more,
    }


@pytest.mark.timeout(600 + 60 * FAULTS)
def test_random_faults_change_no_bit_and_leave_nothing_behind(
    platform: Platform, prepared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shared_before = shared_memory()
    with capsys.disabled():
        Console().print(f"\nsoak of {FAULTS} faults, seed {SEED}: PHALANX_SOAK_SEED={SEED} repeats it")
        undisturbed = finished(platform, platform.submit(soaked(prepared)))
        job = platform.submit(soaked(prepared, chaos=True, recovery={"in_gang": True, "spares": 1, "hang_timeout": "5s"}))
        run = disturbed(Disturbed(platform, job))
        view = finished(platform, job)
        Console().print(told(run, view))
    assert run.met.total() >= FAULTS, f"seed {SEED}: {told(run, view)}"
    same_losses(losses(platform, job), losses(platform, undisturbed.id))
    assert digest(platform, view.model) == digest(platform, undisturbed.model), f"seed {SEED}"
    every_checkpoint_restores(platform.home, job, undisturbed.id)
    the_ledger_sums_up(platform, job)
    nothing_is_left_of(platform, job)
    flipped_bits_are_found(platform, prepared)
    platform.run("down", "--force")
    until(lambda: not [*processes(platform.home), *descriptors(platform.home), *listening(platform.home)])
    until(lambda: not shared_memory() - shared_before)
    for daemon in ("server", "agent"):
        said = (platform.home / "run" / f"{daemon}.log").read_text()
        assert "Traceback" not in said and '"critical"' not in said, said[-4_000:]


def disturbed(run: Disturbed) -> Disturbed:
    """Until so many faults were met, or the job has ended."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    coming = faults(random.Random(SEED), RANKS)
    until(run.step)
    with Progress(*columns) as progress:
        bar = progress.add_task("faults", total=FAULTS)
        while run.met.total() < FAULTS and run.view().state != "finished":
            run.strike(next(coming))
            progress.update(bar, completed=run.met.total(), description=f"faults, step {run.step()} of {STEPS}")
            if not progress.console.is_terminal:
                progress.console.print(f"{run.met.total()} of {FAULTS} faults, step {run.step()} of {STEPS}: {run.told[-1]}")
    return run


def flipped_bits_are_found(platform: Platform, prepared: Path) -> None:
    """Each in a run of its own, since what it changes stays changed: the rank whose bit it was is named."""
    for flip in flips(random.Random(SEED), RANKS, FLIPS):
        spec = soaked(prepared, chaos=True)
        spec["hyperparameters"] |= {"steps": 10**6, "recompute_every": LOOKS}
        run = Disturbed(platform, platform.submit(spec))
        until(run.step)
        run.strike(((flip, 24),), every=LOOKS)
        named = until(lambda run=run: [one for one in run.view().findings if one.kind == "corruption"])  # type: ignore[misc] # bound
        assert f"rank {flip.rank} is corrupt" in named[0].sentence, f"seed {SEED}: {flip}: {named[0].sentence}"
        with platform.client() as client:
            client.cancel(run.job)
            client.wait(run.job, timeout_s=240)


def finished(platform: Platform, job: str) -> JobView:
    with platform.client() as client:
        view = client.wait(job, timeout_s=600 + STEPS / 10)
    assert view.outcome == "succeeded", f"seed {SEED}: {view.outcome}: {view.detail}\n{platform.logs(job)}"
    return view


def told(run: Disturbed, view: JobView) -> str:
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(run.met.items()))
    recoveries = [one for attempt in view.attempts for one in attempt.recoveries]
    lost = max((one.steps_lost for one in recoveries), default=0)
    return (
        f"{run.met.total()} faults met ({kinds}), {run.late} too late, {run.dropped} whose attempt ended before; "
        f"{len(recoveries)} recoveries inside the gang, at most {lost} steps lost; {len(view.attempts)} attempts"
    )


def same_losses(ours: Mapping[int, set[str]], theirs: Mapping[int, set[str]]) -> None:
    """Of every step, also where it was made more than once."""
    odd = [step for step in sorted(ours.keys() | theirs.keys()) if ours.get(step) != theirs.get(step)]
    assert sorted(theirs) == list(range(1, STEPS + 1)) and odd == [], f"seed {SEED}: {len(odd)} steps differ, first {odd[:5]}"


def every_checkpoint_restores(home: Path, job: str, undisturbed: str) -> None:
    """Whole, verified, and of the same bits as that of the undisturbed run at the same step."""
    mine, theirs = (dict(manifest.committed(home / "jobs" / name / "checkpoints")) for name in (job, undisturbed))
    assert STEPS in mine and len(mine) > 1
    for step in mine.keys() & theirs.keys():
        ours, wanted = restored(mine[step]), restored(theirs[step])
        assert ours.keys() == wanted.keys()
        odd = [name for name in ours if not torch.equal(ours[name].view(torch.uint8), wanted[name].view(torch.uint8))]
        assert odd == [], f"seed {SEED}: step {step}"
    for step in mine.keys() - theirs.keys():
        restored(mine[step])


def restored(folder: Folder) -> Mapping[str, torch.Tensor]:
    """Onto one process, by the way that every restore goes; each byte is verified in it."""
    checkpoint = open_checkpoint(folder)
    specs = {name: spec_of(parts) for name, parts in checkpoint.tensors.items() if not name.startswith(RNG)}
    state = {name: torch.zeros(spec.shape, dtype=DTYPES[spec.dtype]) for name, spec in specs.items()}
    load_state(checkpoint, state)
    return {name: tensor.reshape(-1) for name, tensor in state.items()}


def the_ledger_sums_up(platform: Platform, job: str) -> None:
    with platform.client() as client:
        ledger, of_all = client.ledger(job=job), client.ledger()
    assert sum(ledger.categories.values()) == ledger.capacity and of_all.balanced


def nothing_is_left_of(platform: Platform, job: str) -> None:
    """Once the agent was told to forget it, a moment after its end."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        left = [*processes(platform.home, job), *sockets(platform.home), *(one for one in attempts(platform.home) if job in one)]
        if not left:
            return
        time.sleep(0.1)
    pytest.fail(f"seed {SEED}: left behind: {left}")
