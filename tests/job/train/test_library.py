"""The library alone, in one process: what it refuses, and that each part is of use by itself."""

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, OneCycleLR, ReduceLROnPlateau, SequentialLR

import phalanx
from phalanx.core import wire
from phalanx.core.errors import CheckpointError, UserError
from phalanx.core.records import Metric, RankRecord, StepRecord
from phalanx.job.checkpoint import manifest
from phalanx.job.checkpoint.rng import rng_name
from phalanx.job.checkpoint.whole import open_checkpoint
from phalanx.job.sdk import Session
from phalanx.job.train.library import Run, RunLoader
from phalanx.job.train.library.curves import curves_of
from phalanx.job.train.library.generators import own_parts
from phalanx.job.train.library.member import last_step
from phalanx.job.train.library.packed import pack, unpack
from phalanx.job.train.library.steps import Steps, _Number
from phalanx.job.train.traces.profile import Profile
from tests.job.data.random_tokens import write_tokens


@pytest.fixture(autouse=True)
def undisturbed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Outside Phalanx and torchrun, in a folder of its own."""
    for name in [name for name in os.environ if name.startswith("PHALANX_") or name in ("RANK", "WORLD_SIZE")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)
    assert not dist.is_initialized()


def pair() -> tuple[nn.Linear, torch.optim.AdamW]:
    torch.manual_seed(0)
    model = nn.Linear(3, 3)
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def update(model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    loss = (model(torch.rand(2, 3)) * (random.random() + np.random.rand())).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return float(loss.item())


def said(path: Path) -> list[Any]:
    return [wire.loads(RankRecord, line) for line in path.read_bytes().splitlines()]


def test_importing_phalanx_brings_no_torch() -> None:
    code = "import sys, phalanx; assert 'torch' not in sys.modules; phalanx.client_is_no_such_name"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "has no attribute 'client_is_no_such_name'" in done.stderr


def test_a_script_stopped_by_an_error_goes_on_bit_for_bit(tmp_path: Path) -> None:
    def train(folder: str, fails_at: int = 0) -> list[float]:
        losses = []
        with phalanx.run(folder=folder, every=4, deterministic=True) as run:
            model, optimizer = pair()
            random.seed(1)
            np.random.seed(1)
            schedule = CosineAnnealingLR(optimizer, 10)
            for step in range(run.restore(model, optimizer, schedule=schedule) + 1, 11):
                if step == fails_at:
                    raise RuntimeError("as planned")
                losses.append(update(model, optimizer))
                schedule.step()
                run.maybe_save(step)
                run.log(step, loss=losses[-1])
        return losses

    whole = train("whole")
    with pytest.raises(RuntimeError, match="as planned"):
        train("broken", fails_at=7)
    assert train("broken") == whole[4:]
    assert [step for step, _ in manifest.committed(tmp_path / "broken" / "checkpoints")] == [10, 8], (
        "the last one is saved by itself"
    )
    assert train("broken") == [], "it was done"


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda run: run.save(1), "call run.restore(model, optimizer) first"),
        (lambda run: run.maybe_save(1), "call run.restore(model, optimizer) first"),
        (lambda run: run.restore("model"), "give a torch.nn.Module"),
        (lambda run: run.restore(pair()[0], pair()[0]), "give a torch.optim.Optimizer"),
        (lambda run: run.restore(pair()[0], scheduler=3), "give an object with state_dict"),
        (lambda run: run.restore(pair()[0], other=Odd({1, 2})), "numbers, texts, lists, mappings and tensors alone"),
        (lambda run: run.restore(pair()[0], **{"a": Odd({"b": torch.ones(1)}), "a.state": Bare()}), "two tensors"),
        (lambda run: (run.restore(*pair()), run.restore(*pair())), "name all that belongs together in one call"),
        (lambda run: (run.restore(*pair()), run.save(0)), "steps count up from 1"),
        (lambda run: (run.log(1, loss=1.0), run.log(1, loss=1.0)), "steps count up from 1, and 1 was said"),
        (lambda run: run.log(1, loss="low"), "give one number, or a tensor of one"),
        (lambda run: run.log(1, loss=torch.zeros(2)), "give one number, or a tensor of one"),
        (lambda run: run.log(1, **{"a\nb": 1.0}), "visible characters"),
        (lambda run: run.loader(sequence=8, batch=2), "name a folder made by `phalanx data prepare`"),
        (lambda run: run.profile(first=0), "step 1 comes next"),
        (lambda run: run.profile(first=5, count=0), "trace 1 to 100 steps"),
        (lambda run: (run.profile(first=5), run.profile(first=6)), "are asked for already"),
        (lambda run: run.begin(-1), "0 or more"),
        (lambda run: phalanx.run().__enter__(), "one run at a time in a process"),
    ],
)
def test_mistakes_are_one_clear_error(wrong: Any, words: str) -> None:
    with pytest.raises(UserError) as raised, phalanx.run() as run:
        wrong(run)
    assert words in str(raised.value)


class Odd:
    """Has a state of whatever it was given."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def state_dict(self) -> Any:
        return {"state": self.state}

    def load_state_dict(self, state: Any) -> None:
        self.state = state["state"]


class Bare(nn.Module):
    """Its state is a tensor under `b`."""

    def __init__(self) -> None:
        super().__init__()
        self.b = nn.Parameter(torch.ones(1))


@pytest.mark.parametrize(
    ("options", "env", "words"),
    [
        ({"mesh": {"dp": 2}}, {}, "has 2 places and there are 1 ranks"),
        ({"mesh": {"dp": -1, "tp": -1}}, {}, "-1 for one of them"),
        ({"mesh": {}}, {}, "name its axes"),
        ({"config": {"lr": object()}}, {}, "config: give a mapping"),
        ({}, {"RANK": "0"}, "WORLD_SIZE: is not set, and RANK is"),
    ],
)
def test_a_run_that_cannot_be_is_refused(
    options: dict[str, Any], env: dict[str, str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError) as raised, phalanx.run(**options):
        pass
    assert words in str(raised.value)


def test_another_configuration_or_another_script_does_not_go_on_from_a_checkpoint() -> None:
    with phalanx.run(config={"width": 3}) as run:
        run.restore(*pair())
        run.save(1)
    with pytest.raises(CheckpointError, match="other hyperparameters"), phalanx.run(config={"width": 4}) as run:
        run.restore(*pair())
    with pytest.raises(CheckpointError, match="this script gives schedule"), phalanx.run(config={"width": 3}) as run:
        model, optimizer = pair()
        run.restore(model, optimizer, schedule=CosineAnnealingLR(optimizer, 10))
    with pytest.raises(CheckpointError, match="optimizers are in it"), phalanx.run(config={"width": 3}) as run:
        run.restore(pair()[0])


def test_a_group_that_is_there_is_used_and_left_to_who_made_it() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    try:
        with phalanx.run() as run:
            assert (run.rank, run.world_size, run.device.type, run.mesh.mesh_dim_names) == (0, 1, "cpu", ("dp",))
        assert dist.is_initialized()
    finally:
        dist.destroy_process_group()


def test_a_notice_is_heeded_only_by_who_asks_and_a_second_one_by_nobody() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with phalanx.run() as run:
        assert signal.getsignal(signal.SIGTERM) == before, "a script that never asks ends as ever"
        assert not run.should_stop()
        os.kill(os.getpid(), signal.SIGTERM)
        assert run.should_stop()
    assert signal.getsignal(signal.SIGTERM) == before


def test_waits_and_numbers_of_a_step_are_in_its_record(tmp_path: Path) -> None:
    with phalanx.run(steps=2) as run:
        for step, _ in enumerate(run.batches(["one", "two"]), 1):
            run.log(step, loss=torch.tensor(0.5), lr=0.1, tokens=7, accuracy=np.float32(0.25))
    steps = [record for record in said(tmp_path / "phalanx-run" / "rank-0.records") if isinstance(record, StepRecord)]
    assert [(one.step, one.total_steps, one.loss, one.lr, one.tokens) for one in steps] == [
        (1, 2, 0.5, 0.1, 7),
        (2, 2, 0.5, 0.1, 7),
    ]
    metrics = [record for record in said(tmp_path / "phalanx-run" / "rank-0.records") if isinstance(record, Metric)]
    assert [(one.name, one.step, one.value) for one in metrics] == [("accuracy", 1, 0.25), ("accuracy", 2, 0.25)]


def test_a_step_is_as_long_as_from_one_log_to_the_next() -> None:
    records: list[StepRecord] = []
    clock = iter([0.0, 2.0, 8.0])
    session = Session()
    object.__setattr__(session, "journal", Into(records))
    steps = Steps(session, 0, 0, lambda: next(clock), lambda: 1000)
    steps.waited(0.5)
    steps.log(1, 0.25, 10, {})
    steps.log(3, 0.0, 10, {"loss": float("nan")})
    first, second = records
    assert (first.data_wait_ms, first.checkpoint_ms, first.compute_ms) == (500, 250, 1250)
    assert (first.ended_ms - first.started_ms, first.tokens_per_s) == (2000, 5.0)
    assert (second.ended_ms - second.started_ms, second.tokens, second.total_steps) == (6000, 20, 3), "two steps in one record"


class Event:
    """Of a GPU that is so far with its work; CUDA's cannot be had here."""

    def __init__(self, heard: list[str]) -> None:
        self._heard, self._is_done, self.error = heard, False, ""

    def query(self) -> bool:
        self._heard.append(f"asked, {'in' if dist.is_initialized() else 'after'} the group")
        if self.error:
            raise RuntimeError(self.error)
        return self._is_done

    def synchronize(self) -> None:
        self._heard.append("waited")
        self._is_done = True


def on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes numbers of `log` that lie on a GPU: each is given as its event."""
    monkeypatch.setattr(_Number, "of", lambda _, event: _Number(1.0, event))


def test_a_device_far_behind_is_waited_for_by_its_oldest_step_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    on_its_way(monkeypatch)
    records: list[StepRecord] = []
    session = Session()
    object.__setattr__(session, "journal", Into(records))
    steps, waited = Steps(session, 1, 0, lambda: 0.0, lambda: 0), []
    for step in range(1, 19):
        heard: list[str] = []
        waited.append(heard)
        steps.log(step, 0.0, 0, {"loss": Event(heard)})
    assert [record.step for record in records] == [1, 2]
    assert ["waited" in heard for heard in waited] == [True, True] + [False] * 16
    steps.flush(wait=True)
    assert len(records) == 18


@pytest.mark.parametrize("error", ["", "CUDA error: device-side assert triggered"])
def test_after_an_error_the_group_goes_first_and_no_device_is_waited_for(error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    on_its_way(monkeypatch)
    heard: list[str] = []
    with pytest.raises(ValueError, match="as planned"), phalanx.run() as run:
        event = Event(heard)
        run.log(1, loss=event)
        event.error = error
        heard.clear()
        raise ValueError("as planned")
    assert heard == ["asked, after the group"]


class Into:
    """A journal that keeps records."""

    lost = 0

    def __init__(self, records: list[Any]) -> None:
        self._records = records

    def write(self, record: Any) -> bool:
        self._records.append(record)
        return True


def loaded(run: Run) -> RunLoader:
    return run.loader("data", sequence=4, batch=2, steps=6)


def test_a_loader_has_its_place_in_the_checkpoint_whether_made_before_or_after(tmp_path: Path) -> None:
    write_tokens(tmp_path / "data", [500], vocab_size=9)

    def batches(count: int, after: bool) -> list[torch.Tensor]:
        with phalanx.run(folder="loaded") as run:
            loader = loaded(run) if not after else None
            begin = run.restore(nn.Linear(1, 1))
            loader = loader or loaded(run)
            found = []
            for step, batch in enumerate(loader, begin + 1):
                found.append(batch)
                if len(found) == count:
                    run.save(step)
                    break
            return found

    got = batches(2, after=False) + batches(2, after=True) + batches(9, after=False)
    with phalanx.run(folder="whole") as run:
        assert torch.equal(torch.stack(got), torch.stack(list(loaded(run))))


def constant(step: int) -> float:
    return 0.9**step


def schedules(optimizer: torch.optim.Optimizer) -> list[Any]:
    return [
        LambdaLR(optimizer, constant),
        OneCycleLR(optimizer, 0.1, total_steps=10),
        ReduceLROnPlateau(optimizer),
        SequentialLR(optimizer, [CosineAnnealingLR(optimizer, 3), CosineAnnealingLR(optimizer, 9)], [3]),
    ]


def test_states_come_back_as_they_were() -> None:
    state = {
        "none": None, "nan": float("inf"), "tuple": (1, [2.5, "x"]), 7: {"$": True}, "array": np.arange(3), "number": np.int64(4),
        "tensor": torch.ones(2), "empty": {},
    }  # fmt: skip
    tensors: dict[str, torch.Tensor] = {}
    again = unpack(pack(state, "s", tensors), tensors)
    assert set(tensors) == {"s.array", "s.tensor"}
    assert (again["tuple"], again[7], again["number"], again["empty"]) == ((1, [2.5, "x"]), {"$": True}, 4, {})
    assert torch.equal(again["tensor"], torch.ones(2)) and np.array_equal(again["array"], np.arange(3))
    for schedule in schedules(pair()[1]):
        kept = schedule.state_dict()
        assert unpack(pack(kept, "s", tensors), tensors) == kept
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(UserError, match="holds itself"):
        pack(circle, "s", {})
    for twice in ({1: torch.ones(1), "1": torch.ones(1)}, {"a.b": np.ones(1), "a": {"b": torch.ones(1)}}):
        with pytest.raises(UserError, match="names two tensors"):
            pack(twice, "s", {})
    with pytest.raises(CheckpointError, match="does not hold"):
        unpack({"$": "tensor", "of": "elsewhere"}, {})


def test_generators_take_one_size_whatever_they_are_at() -> None:
    before = [part for part, _ in own_parts(0)]
    random.gauss(0, 1)
    np.random.randn()
    assert [part for part, _ in own_parts(0)] == before


def test_a_damaged_generator_makes_all_ranks_go_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What one rank alone would raise after the others were content is met where damage is told to all."""
    with phalanx.run() as run:
        model = nn.Linear(1, 1)
        run.restore(model)
        run.save(1)
        drawn = random.random(), np.random.rand()
        run.save(2)
    newest = manifest.committed(tmp_path / "phalanx-run" / "checkpoints")[0][1]
    (located,) = open_checkpoint(newest).tensors[rng_name(0, "numpy")]
    path = Path(str(newest)) / located.shard.file
    data = bytearray(path.read_bytes())
    data[located.entry.offset] ^= 1
    path.write_bytes(data)
    with phalanx.run() as run:
        assert run.restore(nn.Linear(1, 1)) == 1
        assert (random.random(), np.random.rand()) == drawn, "those of the one before"
    assert "numpy does not match its checksum" in caplog.text


def test_the_last_step_is_found_behind_a_torn_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with phalanx.run() as run:
        run.log(1, loss=1.0)
        run.log(2, loss=1.0)
        session = run.session
    path = tmp_path / "phalanx-run" / "rank-0.records"
    with path.open("ab") as file:
        file.write(b'{"kind": "step", "ste')
    monkeypatch.setenv("PHALANX_RECORDS", str(path))
    assert last_step(session) == 2
    assert last_step(Session()) == 0


def test_what_changes_its_size_between_saves_is_refused() -> None:
    with pytest.raises(UserError, match="changed its size since the first save"), phalanx.run() as run:
        odd = Odd(torch.zeros(2))
        run.restore(nn.Linear(1, 1), odd=odd)
        run.save(1)
        odd.state = torch.zeros(3)
        run.save(2)


def test_what_a_trainer_logs_ends_no_training() -> None:
    given = {
        "tokens": 3, "step": np.float32(2), "self": torch.ones(1), "loss": 0.5, "acc": True, "x" * 129: 1.0, "a\nb": 1.0,
        "pair": torch.ones(2), "complex": torch.ones(1, dtype=torch.complex64), "said": "so", "none": None,
    }  # fmt: skip
    curves = curves_of(given)
    assert list(curves) == ["logged.tokens", "logged.step", "logged.self", "loss", "acc"]
    with phalanx.run() as run:
        run.log(1, tokens=7, **curves)


def test_a_trace_is_read_by_another_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(*_: object) -> None:
        raise AssertionError("in the process that trains")

    monkeypatch.setattr(json, "load", refused)
    with phalanx.run() as run:
        run.profile(first=1, count=1)
        run.log(1, loss=torch.ones(3, 3).sum())
        for writing in run._profile._writing:
            writing.join(300)
        run.profile(first=2, count=1)
        monkeypatch.setattr(sys, "executable", "/no/such/python")
        run._profile.close()
        run.log(2)
    folder = tmp_path / "phalanx-run" / "artifacts" / "profile"
    assert sorted(path.name for path in folder.iterdir()) == [
        f"rank-0-steps-1-1.{kind}" for kind in ("summary.json", "summary.txt", "trace.json.gz")
    ]
    assert "the trace of steps rank-0-steps-2-2 could not be written" in caplog.text


def test_after_an_error_a_trace_of_a_gpu_is_given_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = Profile(tmp_path, 0, torch.device("cpu"))
    made.ask(1, 1, 1)
    tracing: Any = made._profiler
    made._on_gpu = True  # ending it now would wait for the device, of which this torch knows none
    made.close(failed=True)
    assert not tracing.profiler.kineto_results
    Profile(tmp_path, 0, torch.device("cpu")).at(2)  # of whoever goes on in this process
    assert tracing.profiler.kineto_results
    assert "steps 1 to 1 is given up" in caplog.text and not list(tmp_path.iterdir())


def test_a_fault_of_the_profiler_is_said_once_and_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Faulty:
        def __init__(self, *_: object, **__: object) -> None:
            self.ended = 0

        def __enter__(self) -> None:
            raise RuntimeError("out of buffers")

        def __exit__(self, *_: object) -> None:
            raise RuntimeError("was never entered")

    monkeypatch.setattr("phalanx.job.train.traces.profile.record_function", Faulty)
    made = Profile(tmp_path, 0, torch.device("cpu"))
    made.ask(1, 2, 1)
    for step in (1, 2, 3):
        made.at(step)
        made.phase("optimizer")
    made.close()
    assert [record.message for record in caplog.records] == [
        "tracing is given up, and training goes on: RuntimeError: out of buffers"
    ]
    assert not list(tmp_path.iterdir())
    monkeypatch.undo()
    again = Profile(tmp_path, 0, torch.device("cpu"))  # the faulty one left no profiler that runs
    again.ask(1, 1, 1)
    again.at(2)
    again.close()
    assert (tmp_path / "profile" / "rank-0-steps-1-1.trace.json.gz").exists()


def test_a_job_s_own_wish_to_be_traced_goes_before_the_script_s(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PHALANX_PROFILE", '{"first": 2, "count": 2}')
    with phalanx.run() as run:
        run.begin(2)  # gone on with after the first of them
        run.profile(first=9)
        run.log(3)
        run.log(4)
    assert (tmp_path / "phalanx-run" / "artifacts" / "profile" / "rank-0-steps-3-3.summary.json").exists()
    assert "steps 9 to 11 are not traced: the job asks for others" in caplog.text


def test_rank_and_device_need_nothing_else() -> None:
    with phalanx.run(mesh={"dp": -1, "tp": 1}) as run:
        assert run.is_first and run.local_rank == 0
        assert run.mesh.mesh_dim_names == ("dp", "tp")
        run.alive()
