"""What a model version descends from, as text by name: enough to find, check and repeat it. Pure."""

from collections.abc import Sequence

from phalanx.core.ids import AttemptId, JobId
from phalanx.core.records import CheckpointCommitted, ModelSaved
from phalanx.core.spec import JobSpec

KEYS = (
    "data_manifest",
    "code",
    "environment",
    "config",
    "checkpoint",
    "job",
    "attempts",
    "recipe",
    "weights_digest",
    "step",
    "project",
)
"""Always present; '' where there is no such thing, as for the code of a job without a workdir."""


def lineage_of(
    spec: JobSpec,
    code: str,
    config: str,
    job: JobId,
    attempts: Sequence[AttemptId],
    saved: ModelSaved,
    checkpoint: CheckpointCommitted | None = None,
) -> dict[str, str]:
    """KEYS, and whatever else the rank knew (torch's version, say).

    code, config: SHA-256 of the packed workdir and of the spec. attempts: that ran, oldest first. checkpoint: the newest that was
    committed before the model was saved. What the job asked to run in is 'environment.lock' (by the rank's word with its SHA-256),
    'environment.image' or 'environment.python'. The rank's word counts for what only it knows (the data, the environment, the
    checkpoint that it ended with); what the control plane knows itself a rank cannot change.
    """
    asked = spec.environment
    told = {
        "data_manifest": "",
        "environment": asked.python or asked.image or asked.lock,
        "checkpoint": f"{checkpoint.path}@{checkpoint.digest}" if checkpoint else "",
        "recipe": spec.recipe,
        **({"environment.lock": asked.lock} if asked.lock else {}),
        **{key: value for key, value in saved.lineage.items() if value},
    }
    known = {
        "code": code,
        "config": config,
        "job": str(job),
        "attempts": ",".join(attempts),
        "weights_digest": saved.weights_digest,
        "step": str(saved.step),
        "project": spec.project,
    }
    named = {"environment.image": asked.image, "environment.python": asked.python}
    return {**told, **known, **{key: value for key, value in named.items() if value}}
