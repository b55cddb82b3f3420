"""What the command line needs and may not import: callables that `app.py` puts in, each importing its room only when called."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phalanx.core.checkpoints import StoredCheckpoint
    from phalanx.core.clusters import Answer, Clusters, DispatchView
    from phalanx.core.data_asked import AuditAsked, ForeseeAsked, MadeAsked, MixAsked, PrepareAsked, SampleAsked
    from phalanx.core.data_audit import DataAudit
    from phalanx.core.data_views import MixView, SamplesView
    from phalanx.core.experts import ExpertsAsked, ExpertsView
    from phalanx.core.fabric_test import FabricAsked, FabricReport
    from phalanx.core.pipeline import PipelineAsked, PipelineView
    from phalanx.core.sim_report import SimAsked, SimReport, WhatIfView
    from phalanx.core.spec import JobSpec
    from phalanx.core.views import BackupView, DownView, RestoreView

ProgressSink = Callable[[str, int, int], None]
"""Called as (stage, done, total), in bytes of text, while data is prepared; `total` 0 means unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """Every callable raises core.errors. The command line prints; only `sample_model` writes to stdout itself.

    up(home, port, cpu_slots, store, database, standby): starts what is not running yet and returns once the API answers; True when
        anything was started. port 0 picks a free one, the one of last time when it is free; cpu_slots None lets the agent choose;
        store '' leaves the blobs where they are, and database '' the database. `standby`: starts one instead, and returns once it
        waits or leads.
    down(home, force): stops server and agent. Raises Conflict while jobs hold devices, unless `force`, which stops their ranks
        too; says where it could not.
    backup(home, path): writes the home's database into a new file, also while its server runs.
    restore(home, path, database, keep_tokens): makes such a file the home's database, '' in its own SQLite or where it was.
    prepare_data(asked, progress): tokenizer and token shards into a folder; returns what show_data shows, and of what was not
        taken `left_out`, and of an interrupted run that it went on from `resumed`.
    make_data(asked, progress): a data set of other data than text, or an MDS folder; returns what show_data shows, or the like.
    show_data(path, progress): what a prepared folder says of itself as a nested mapping of plain values, and a few samples;
        progress as of prepare_data, for a folder so old that it has to be read whole.
    verify_data(path, progress): the same, with every byte read and checksums_ok. Of damaged data path, checksums_ok
        False, damaged with `file` and `problem` of each, and says, for people.
    push_data(path, place, progress): puts a prepared folder into an object store; gives `place`, where it lies, and how much it is.
    sample_data(asked): samples of a prepared folder as a model would read them.
    audit_data(asked, progress): what the ranks of the job in a folder were given, held against its order and its newest
        checkpoint; where that is asked also against the data. progress as of prepare_data, in samples.
    foresee_data(asked): refuses the data of a job for what its ranks would refuse, as far as it is seen from here; returns warnings
        of what is not.
    foresee_model(spec): the same of the folder of the model that a recipe's job begins with, and of the layout that it asks for.
    mix_data(asked): what a run will read of each source.
    sample_model(path, digest, prompt, tokens, seed, temperature): writes the prompt and its continuation to file descriptor 1
        from the model folder at `path`, after checking that its weights have `digest`; returns the exit code.
    export_model(path, digest, to, format, dtype): writes the model folder at `path`, after the same check, as the folder `to` for
        other libraries; returns the exit code.
    list_checkpoints(place): those in a folder of this machine or below a URL, by manifests and sizes.
    verify_checkpoints(place, progress): the same, with every byte read; progress as of prepare_data, a stage a checkpoint.
    pack_workdir(folder): the packed snapshot that `submit` uploads.
    join(home, url, token_file, name): makes this home's node a member of the control plane at `url`, or finds that it is one;
        returns its name, `name` '' means the one it has.
    isolate(home, mode): how this home's agent keeps jobs apart from now on, see core.isolation. Raises SetupError for a mode that
        is none, or while it runs in another.
    serve_node(home, cpu_slots): runs the agent of a home that joined, until SIGTERM or SIGINT; the real one never returns, since
        this process becomes the agent.
    simulate(asked, progress): replays a trace; progress(jobs over, jobs). Writes the HTML report that `asked` names.
    what_if(snapshot, policy): decides the snapshot of a file under the policy of another one too.
    choose(spec, clusters, answers, now_ms): which of several clusters a job goes to.
    place_experts(asked): where experts lie by their loads.
    test_fabric(asked, num_ranks, out, progress): tests the links of this machine with so many ranks, None for one on each GPU
        that CUDA_VISIBLE_DEVICES leaves; the report is in the file `out` too. progress(measurements done, all).
    plan_pipeline(asked): what the schedules of a pipeline leave idle.
    """

    up: Callable[[Path, int, int | None, str, str, bool], bool]
    down: "Callable[[Path, bool], DownView]"
    backup: "Callable[[Path, Path], BackupView]"
    restore: "Callable[[Path, Path, str, bool], RestoreView]"
    prepare_data: "Callable[[PrepareAsked, ProgressSink], Mapping[str, Any]]"
    make_data: "Callable[[MadeAsked, ProgressSink], Mapping[str, Any]]"
    show_data: Callable[[Path | str, ProgressSink], Mapping[str, Any]]
    verify_data: Callable[[Path | str, ProgressSink], Mapping[str, Any]]
    sample_data: "Callable[[SampleAsked], SamplesView]"
    audit_data: "Callable[[AuditAsked, ProgressSink], DataAudit]"
    foresee_data: "Callable[[ForeseeAsked], Sequence[str]]"
    foresee_model: "Callable[[JobSpec], Sequence[str]]"
    mix_data: "Callable[[MixAsked], MixView]"
    push_data: Callable[[Path, str, ProgressSink], Mapping[str, Any]]
    sample_model: Callable[[Path, str, str, int, int, float], int]
    export_model: Callable[[Path, str, Path, str, str], int]
    list_checkpoints: "Callable[[str], Sequence[StoredCheckpoint]]"
    verify_checkpoints: "Callable[[str, ProgressSink], Sequence[StoredCheckpoint]]"
    pack_workdir: Callable[[Path], bytes]
    join: Callable[[Path, str, Path | None, str], str]
    isolate: Callable[[Path, str], None]
    serve_node: Callable[[Path, int | None], int]
    simulate: "Callable[[SimAsked, Callable[[int, int], None]], SimReport]"
    what_if: "Callable[[str, str], WhatIfView]"
    choose: "Callable[[JobSpec, Clusters, Sequence[Answer], int], DispatchView]"
    place_experts: "Callable[[ExpertsAsked], ExpertsView]"
    test_fabric: "Callable[[FabricAsked, int | None, Path, Callable[[int, int], None]], FabricReport]"
    plan_pipeline: "Callable[[PipelineAsked], PipelineView]"
