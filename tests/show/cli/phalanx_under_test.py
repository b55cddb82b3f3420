"""The real command line as a process of its own, with stand-ins for what app.py would inject."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from phalanx.app import place_experts, plan_pipeline
from phalanx.core import wire
from phalanx.core.checkpoints import StoredCheckpoint
from phalanx.core.clusters import Answer, Clusters, DispatchView, OfferView
from phalanx.core.data_asked import AuditAsked, ForeseeAsked, MadeAsked, MixAsked, PrepareAsked, SampleAsked
from phalanx.core.data_audit import DataAudit, DeliveryFault, Leg, SourceRead
from phalanx.core.data_views import (
    MixSourceView,
    MixView,
    MixWeightsView,
    PieceView,
    SampledView,
    SamplesView,
    SampleView,
)
from phalanx.core.errors import Conflict, DataError, SetupError, SpecError
from phalanx.core.fabric_test import CostView, FabricAsked, FabricReport, PointView, SlowView, TierView
from phalanx.core.sim_report import MoveView, NeverView, SideView, SimAsked, SimReport, Spread, TenantView, WhatIfView
from phalanx.core.spec import JobSpec
from phalanx.core.views import BackupView, DownView, RestoreView
from phalanx.show.cli.main import run
from phalanx.show.cli.tools import ProgressSink, Tools


def up(home: Path, port: int, cpu_slots: int | None, store: str = "", database: str = "", standby: bool = False) -> bool:
    return cpu_slots != 1


def down(home: Path, force: bool) -> DownView:
    if not force:
        raise Conflict("home", str(home), "1 job holds devices; wait for it, or add --force")
    return DownView(home=str(home), stopped=True, left=("rack2", "rack3"))


def backup(home: Path, path: Path) -> BackupView:
    return BackupView(file=str(path), database="SQLite, /h/phalanx.db", schema="0004", events=7, rows=40, size_bytes=2048)


def restore(home: Path, path: Path, database: str, keep_tokens: bool) -> RestoreView:
    return RestoreView(home=str(home), database=database, schema="0004", events=7, rows=40, made_ms=1_700_000_000_000)


def prepare_data(asked: PrepareAsked, progress: ProgressSink) -> Mapping[str, Any]:
    progress("reading", 1, 2)
    progress("reading", 2, 2)
    progress("tokenizing", 0, 0)
    given = {name: value for name, value in asdict(asked).items() if name not in ("out", "paths", "left_out", "vocab_size")}
    binary = {"count": 5, "files": 5, "examples": ["a\x1b[31m.bin is binary (byte 2 is NUL)"]}
    return {
        **folder_of_tokens(str(asked.out)), **{name: str(value) for name, value in given.items()},
        "left_out": {"binary": binary, "no_text": {"count": 9, "files": 1, "examples": ["byte 0 of a.jsonl has no text"]}},
        "resumed": {"shards": 2, "tokens": 1200, "documents": 7, "dropped": 0},
    }  # fmt: skip


def folder_of_tokens(path: str) -> dict[str, Any]:
    """As `show_data` tells it, with a text that would steer a terminal, or a browser."""
    source = {"name": "<b>web\x1b[2J", "documents": 30, "text_bytes": 6000, "skipped_binary": 5, "skipped_short": 0, "sha256": "ab"}
    bins = [{"least": 2, "most": 3, "documents": 4}, {"least": 4, "most": 7, "documents": 16}]
    return {
        "path": path, "manifest_hash": "ab12", "tokens": 1000, "documents": 40, "text_bytes": 8000, "bytes_per_token": 8.0,
        "vocab_size": 300, "dtype": "uint16", "size_bytes": 2048,
        "splits": {
            "train": {"tokens": 900, "documents": 36, "text_bytes": 7200},
            "held_out": {"tokens": 100, "documents": 4, "text_bytes": 800},
        },
        "sources": [source, {**source, "name": "books", "documents": 10, "text_bytes": 2000, "skipped_binary": 0}],
        "parameters": {"held_out": 0.1},
        "lengths": {"counted": 20, "least": 2, "median": 5, "mean": 4.5, "most": 7, "bins": bins},
        "samples": [{"split": "held_out", "token": 0, "text": "one\n  two\x1b[31m <script>"}],
        "note": "",
    }  # fmt: skip


def make_data(asked: MadeAsked, progress: ProgressSink) -> Mapping[str, Any]:
    progress("indexing", 1, 1)
    return {name: str(value) for name, value in asdict(asked).items()}


def show_data(path: Path | str, progress: ProgressSink) -> Mapping[str, Any]:
    if not Path(path).exists():
        raise DataError("data", str(path), "is not a folder made by `phalanx data prepare`")
    if str(path).endswith("samples"):
        return {"path": str(path), "samples": 8, "classes": ["cat", "dog\x1b[31m"]}
    return folder_of_tokens(str(path))


def push_data(path: Path, place: str, progress: ProgressSink) -> Mapping[str, Any]:
    progress("pushing", 1, 1)
    return {"path": str(path), "place": place, "files": 3}


def verify_data(path: Path | str, progress: ProgressSink) -> Mapping[str, Any]:
    progress("checking", 1, 2)
    if str(path).endswith("damaged"):
        files = [{"file": name, "problem": f"{name} is cut"} for name in ("a.bin", "b.bin")]
        return {"path": str(path), "checksums_ok": False, "damaged": files, "says": "a.bin is cut\x1b; and 1 more: b.bin"}
    return {**show_data(path, progress), "checksums_ok": True}


def sample_data(asked: SampleAsked) -> SamplesView:
    """Two documents of which one would steer the terminal and pass its own text off as a head."""
    ids = (5, 6) if asked.ids else ()
    text = "one\n\ttwo\x1b[31m\u202e\r  document 1 begins"
    pieces = (
        PieceView(document=8, start=90, tokens=10, document_tokens=100, text=text, ids=ids),
        PieceView(document=9, start=0, tokens=20, document_tokens=50, text="three\n", ids=ids),
    )
    number = None if asked.step is None or asked.batch is None else (asked.step - 1) * asked.batch
    epoch = None if number is None else 0
    shown = SampleView(source=next(iter(asked.data.paths)), sample=4, pieces=pieces, padding=35, position=number, epoch=epoch)
    sources = {name: SampledView(path=path, manifest_hash="ab", samples=50) for name, path in asked.data.paths.items()}
    return SamplesView(
        split=asked.split, sequence=asked.sequence, packing=asked.data.packing, sources=sources, samples=(shown,), step=asked.step,
        batch=asked.batch, seed=asked.seed, left_out=7, note="a note\x1b[2J",
    )  # fmt: skip


def foresee_data(asked: ForeseeAsked) -> Sequence[str]:
    """Of a path that ends in `tars` it is refused, of any other it says what it was asked."""
    if asked.data.path.endswith("tars"):
        raise DataError("data.path", asked.data.path, "holds samples\x1b")
    images = f" {asked.images} of images, {asked.classes} classes" if asked.images is not None else ""
    return (f"{asked.sequence} tokens, {asked.held_out} held out, {dict(asked.env)}{images}\x1b",)


def foresee_model(spec: JobSpec) -> Sequence[str]:
    """Of a folder that ends in `odd` its layout is refused, of any other it says which."""
    folder = str(spec.hyperparameters["init"])
    if folder.endswith("odd"):
        raise SpecError("layout.tp", spec.layout.tp, "write 1\x1b")
    return (f"{folder}\x1b",)


def mix_data(asked: MixAsked) -> MixView:
    """Each source has half of everything; the first is read too often."""
    names = tuple(asked.data.paths)
    half = asked.steps * asked.batch // 2
    sources = tuple(
        MixSourceView(
            name=name, path=path, tokens=5_000, samples=50, asked=0.5, first=0.5, whole=0.5, read=half, epochs=half / 50,
            next_epochs=(9, 19, 29, 39, 49),
        )
        for name, path in asked.data.paths.items()
    )  # fmt: skip
    weights = tuple(
        MixWeightsView(
            after_step=after, steps=asked.steps // 2, asked=dict(zip(names, shares, strict=True)), read=dict.fromkeys(names, 100)
        )
        for after, shares in ((0, (0.5, 0.5)), (asked.steps // 2, (1.0, 0.00001)))
    )
    return MixView(
        steps=asked.steps, batch=asked.batch, sequence=asked.sequence, seed=asked.seed, packing=asked.data.packing,
        first=asked.first, sources=sources, weights=weights if len(names) > 1 else weights[:1],
        parts=dict.fromkeys(names, (0.5, 1.0, 0.001, 0.0)), warnings=("web\x1b[31m is read too often",),
    )  # fmt: skip


def sample_model(path: Path, digest: str, prompt: str, tokens: int, seed: int, temperature: float) -> int:
    os.write(1, f"{prompt}{path} {digest[:4]} {tokens} {seed} {temperature}\x1b[2J\n".encode())
    return 0


def export_model(path: Path, digest: str, to: Path, form: str, dtype: str) -> int:
    """Of a folder that is there nothing is made."""
    return 2 if to.exists() else 0 if (str(path), digest[:4], form, dtype) == ("/jobs/model", "3e16", "hf", "bfloat16") else 70


def audit_data(asked: AuditAsked, progress: ProgressSink) -> DataAudit:
    folder, contents = asked.folder, asked.contents
    known = [*asked.reached, *asked.heard]
    if folder.name == "empty":
        raise DataError("deliveries", str(folder), f"holds no records of deliveries: {asked.none}")
    progress("auditing", 1, 2)
    says = "step 5 of attempt 2, generation 0: rank 1 was given sample 7 of te\x1b[31mxt, which is not of this step"
    fault = DeliveryFault(
        kind="other", attempt=2, generation=0, rank=1, step=5, source="te\x1b[31mxt", sample=9, says=says
    ) if folder.name == "damaged" else None  # fmt: skip
    return DataAudit(
        complete=fault is None, says=says if fault else "48 samples, each delivered exactly once", steps=4, samples=48,
        sources=(SourceRead(name="te\x1b[31mxt", samples=48, epochs=1, rest=18, replaced=2),),
        legs=(
            Leg(attempt=1, generation=0, world_size=3, first_step=1, last_step=2, superseded=2),
            Leg(attempt=2, generation=0, world_size=4, first_step=3, last_step=4, superseded=0),
        ),
        set_aside=1, contents="compared" if contents else f"not compared: {folder}", fault=fault,
        ended=folder.name != "running", damaged="train.bin" if folder.name == "flipped" else "",
        end=", ".join(f"{one.by} {one.steps}" for one in known),
    )  # fmt: skip


STORED = (
    StoredCheckpoint(
        name="step-00000008", path="/jobs/lm-1/checkpoints/step-00000008", step=8, committed=True,
        problem="shard-00001-ab.safetensors: w@0,0 does not match its checksum\x1b[31m",
    ),
    StoredCheckpoint(
        name="step-00000006", path="/jobs/lm-1/checkpoints/step-00000006", step=6, committed=False,
        problem="manifest.json: is missing",
    ),
    StoredCheckpoint(
        name="step-00000004", path="/jobs/lm-1/checkpoints/step-00000004", step=4, committed=True, attempt="lm-1.1", ranks=2,
        tensors=9, size_bytes=3 << 20, metrics={"val_loss": 2.5},
    ),
)  # fmt: skip


def list_checkpoints(place: str) -> Sequence[StoredCheckpoint]:
    """The damage of the newest is one that only reading finds."""
    return [replace(one, path=f"{place}/{one.name}") for one in STORED[1:]]


def verify_checkpoints(place: str, progress: ProgressSink) -> Sequence[StoredCheckpoint]:
    progress("step-00000008", 1, 2)
    return [replace(one, verified=not one.problem) for one in (STORED if place.endswith("/damaged") else STORED[1:])]


def pack_workdir(folder: Path) -> bytes:
    return b"packed " + folder.name.encode()


def join(home: Path, url: str, token_file: Path | None, name: str) -> str:
    if token_file is None:
        raise SetupError("--token-file", None, "this home has not joined yet")
    return name or "this-machine"


def isolate(home: Path, mode: str) -> None:
    if mode not in ("none", "uid"):
        raise SetupError("isolation", mode, "is none of none, uid")
    home.mkdir(parents=True, exist_ok=True)
    (home / "isolation").write_text(mode)


def serve_node(home: Path, cpu_slots: int | None) -> int:
    return cpu_slots or 0


SPREAD = Spread(count=3, mean=90.0, p50=60.0, p99=180.0, max=180.0)
SIM_REPORT = SimReport(
    trace="", source="made up", cluster="H100:8x2", nodes=2, devices=16, policy="default", order="fair", limits="trace", seed=0,
    through="schedule", interval_s=10.0, days=1.5, jobs=4, finished=3, skipped=0, never_fitting=1,
    never=(NeverView(job="big\x1b[31m", devices=32, why="never fits: asks for 32"),), utilisation=0.625, allocation=0.7,
    allocation_bound=0.75, allocation_over_time=((1.0, 0.7),), fragmentation=0.1, fragmentation_waiting=0.2, jct=SPREAD,
    wait=SPREAD, wait_by_class={"standard": SPREAD}, wait_by_size={"1 device": SPREAD},
    tenants={
        "vision": TenantView(jobs=2, wait=SPREAD, gpu_hours=12.0, weight=1.0, normalised=1.0),
        "speech": TenantView(jobs=1, wait=SPREAD, gpu_hours=6.0, weight=1.0, normalised=None),
    },
    evictions=2, evicted_for={"priority": 2}, failures=1, lost_gpu_hours=0.5, jain=0.99, max_min=0.9,
    ledger={"productive": 5_000, "idle": 3_000},
    capacity=8_000, blocked_by={"no_room": 3, "behind": 1}, eta=None, decisions=7, decide_ms=0.4, wall_s=0.1,
)  # fmt: skip
SIDE = SideView(
    policy="its own",
    starts=1,
    waits=2,
    evictions=0,
    started_devices=8,
    lost_gpu_hours=0.0,
    held={"vision": 8},
    waits_for={"no_room": 2},
)
WHAT_IF = WhatIfView(
    snapshot="", at_ms=1_790_000_000_000, nodes=2, devices=16, running=1, pending=3, own=SIDE, other=SIDE,
    moves=(
        MoveView(
            job="a-1", queue="vision", devices=8, verdict="loses", before="starts now on 8 devices", after="waits for quota",
            place_after=2,
        ),
    ),
    notes=("The policy promises too much.",),
)  # fmt: skip


def simulate(asked: SimAsked, progress: Callable[[int, int], None]) -> SimReport:
    """The same figures for every trace, but of its name."""
    progress(3, 3)
    return replace(SIM_REPORT, trace=asked.trace, report=asked.report, jobs_written=asked.jobs)


def what_if(snapshot: str, policy: str) -> WhatIfView:
    return replace(WHAT_IF, snapshot=snapshot, other=replace(WHAT_IF.other, policy=policy))


def choose(spec: JobSpec, clusters: Clusters, answers: Sequence[Answer], now_ms: int) -> DispatchView:
    """The first that answered."""
    names = [answer.cluster for answer in answers if answer.plan is not None]
    offers = tuple(
        OfferView(cluster=one.cluster, verdict="away" if one.away else "refused", sentence=one.problem)
        for one in answers
        if one.plan is None
    )
    return DispatchView(job=spec.name, chosen=names[0] if names else None, offers=offers, run_ms=1, as_of_ms=now_ms)


FABRIC = FabricReport(
    made_ms=1_000, job="", backend="gloo", device="cpu", torch="2.13.0", nodes=("node-a\x1b[2J",), num_ranks=4,
    tiers=(TierView(name="node", num_groups=1, num_ranks=4, hardware_bytes_per_s=450e9, source="18 NVLinks"),),
    points=(PointView(
        tier="node", collective="all_reduce", num_ranks=4, size_bytes=2**20, seconds=0.001, bus_bytes_per_s=1.5e9, part=0.5,
    ),),
    costs=(CostView(tier="node", collective="all_reduce", num_ranks=4, alpha_s=2e-5, beta_s=1e-9, error=0.1),),
    slow=(SlowView(kind="gpu", name="node-a:2", part=0.25, evidence="its 3 pairs: at most 1 GB/s"),), pairs=6, judged=6,
    notes=("a note",),
)  # fmt: skip


def fabric_tested(asked: FabricAsked, num_ranks: int | None, out: Path, progress: Callable[[int, int], None]) -> FabricReport:
    """Slow with as many ranks as there are GPUs, not with another number; by its own names for what it refuses."""
    if num_ranks == 1:
        raise SpecError("num_ranks", num_ranks, "a fabric is tested by two ranks or more")
    progress(1, 2)
    report = replace(FABRIC, num_ranks=num_ranks or 4, slow=() if num_ranks else FABRIC.slow)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(wire.dumps(FabricReport, report))
    return report


TOOLS = Tools(
    up=up, down=down, prepare_data=prepare_data, show_data=show_data, sample_model=sample_model, pack_workdir=pack_workdir,
    join=join, isolate=isolate, serve_node=serve_node, simulate=simulate, what_if=what_if, choose=choose,
    list_checkpoints=list_checkpoints, verify_checkpoints=verify_checkpoints, verify_data=verify_data,
    audit_data=audit_data, sample_data=sample_data, mix_data=mix_data, make_data=make_data, push_data=push_data,
    foresee_data=foresee_data, place_experts=place_experts, backup=backup, restore=restore,
    foresee_model=foresee_model, export_model=export_model, plan_pipeline=plan_pipeline, test_fabric=fabric_tested,
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(run(TOOLS))
