"""What an agent can do beyond the first protocol, by name: a job is placed only where its needs are known.

Without this an older agent would run such a job without what it does not know, as with the wrong Python.
"""

from typing import Final

from phalanx.core.checkpoints import JOBS_FOLDER
from phalanx.core.spec import JobSpec, LayoutSpec
from phalanx.core.training_data import in_store

LOCK: Final = "lock"
"""Builds an environment from a lock file."""
IMAGE: Final = "image"
"""Has podman, apptainer or enroot."""
SECRETS: Final = "secrets"
"""Fetches secrets for the ranks."""
SECRET_FILES: Final = "secret-files"  # noqa: S105 - the name of a feature
"""Gives them as files in memory, too: of nodes that keep jobs apart."""
LEASE: Final = "lease"
"""Its shims end ranks of `on_partition: stop` when the lease is over."""
ARTIFACTS: Final = "artifacts"
"""Sends what ranks put into PHALANX_ARTIFACTS."""
RECOVERY: Final = "recovery"
"""Its shims keep a gang's ranks when one dies, and hold spares."""
SHRINK: Final = "shrink"
"""Its shims let a gang go on with fewer ranks."""
CHAOS: Final = "chaos"
"""Plans faults for its ranks."""
RECOVERY_NODES: Final = "recovery-nodes"
"""Its shims lead, or follow, gangs of several nodes that recover inside."""
DATA_SPEC: Final = "data-spec"
"""Its ranks find all of `data`: a mixture, how rows are made, or data in a store, not the path of a folder alone."""
CHECKPOINT_STORE: Final = "checkpoint-store"
"""Its ranks save where the control plane says, not always in the job's folder."""
LAYOUT: Final = "layout"
"""Its ranks lay a recipe's model out as the job says."""
PIPELINE: Final = "pipeline"
"""Also over a pipeline."""
PROFILE: Final = "profile"
"""Its ranks trace the steps that the job asks for."""
TRACES: Final = "traces"
"""Also those that somebody asks for while it runs; no job needs it to start."""

CHANNELS: Final = "channels"
"""Holds terminals, and opens ways into running jobs."""

ACTIVITY: Final = "activity"
"""Takes signs of work in jobs that people work in; of a control plane."""


def needed(spec: JobSpec) -> frozenset[str]:
    """The features without which a node would run the job otherwise than it asks."""
    asked = {
        LOCK: bool(spec.environment.lock),
        IMAGE: bool(spec.environment.image),
        SECRETS: bool(spec.all_secrets),
        SECRET_FILES: bool(spec.secret_files),
        LEASE: spec.on_partition == "stop",
        RECOVERY: spec.recovery.in_gang,
        SHRINK: spec.recovery.min_ranks > 0,
        CHAOS: spec.chaos,
        DATA_SPEC: spec.data is not None and (not spec.data.is_plain or in_store(spec.data.path)),
        CHECKPOINT_STORE: spec.checkpoint.store not in ("", JOBS_FOLDER),
        RECOVERY_NODES: spec.recovery.in_gang and spec.num_nodes > 1,
        LAYOUT: spec.layout != LayoutSpec(),
        PIPELINE: spec.layout.pp > 1,
        PROFILE: spec.profile is not None,
        CHANNELS: bool(spec.session),
    }
    return frozenset(name for name, wanted in asked.items() if wanted)
