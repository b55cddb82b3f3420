"""What a checkpoint carries besides tensors, and how a run goes on from one: weights, digests and the data cursor as one thing."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from phalanx.core.errors import CheckpointError
from phalanx.job.checkpoint.digest import state_digest
from phalanx.job.checkpoint.manifest import Origin
from phalanx.job.checkpoint.restore import ANY_DATA, Found, Patience, load
from phalanx.job.checkpoint.state import training_state
from phalanx.job.data.cursor import EXTRA, Cursor
from phalanx.job.data.draws import DataOrder
from phalanx.job.train.audit import tell
from phalanx.job.train.feed import RunData

if TYPE_CHECKING:
    from phalanx.job.train.setup import Training

_log: Final = logging.getLogger(__name__)

STATE: Final = "state"
CURSOR: Final = EXTRA
INIT: Final = "init"


def of_any_data(origin: Origin) -> Origin:
    """To find what this run may continue: whether its data may go on is said by the data cursor, since a source that is read from a
    later step on changes the hash over all of them, and nothing of what was read."""
    return replace(origin, data=ANY_DATA)


def state_numbers(training: "Training", step: int, val_loss_first: float) -> dict[str, str | int | float | bool]:
    """What a checkpoint carries besides tensors. `samples`: global samples consumed by `step` updates, as the data cursor has them,
    which also knows of what data and in which order. `init`: of the weights that the run began with, where they were given."""
    size, first = training.batch.samples, val_loss_first.hex()
    cursor = Cursor.after(step, training.order, training.data.manifests).to_json()
    init = {INIT: training.init_digest} if training.init_digest else {}
    return {
        "samples": step * size,
        "global_batch": size,
        "val_loss_first": first,
        CURSOR: cursor,
        **init,
        **training.guard.numbers(),
        **training.expert_places.numbers(),
    }


def digest_numbers(training: "Training", step: int) -> dict[str, str]:
    """What it carries besides `state_numbers`: a digest of all of its tensors, the same in every layout. Says where replicas of a
    part differ. A collective of all ranks that reads the whole state."""
    state, identity = training_state(training.model, training.optimizer), training.identity
    digest = state_digest(state, training.rank.device, identity.mesh, identity.tensors)
    for name, odd in list(digest.odd.items())[:1]:
        tell(training, step, "state", name, odd)
    return {STATE: digest.text}


def check_cursor(extra: Mapping[str, object], step: int, order: DataOrder, data: RunData) -> str:
    """The data cursor of what was saved after `step`. Checkpoints of older versions have none: they are of one data set and the
    full shuffle, and the hashes of that and of their configuration, with the number of samples, said the same.

    Raises DataError for one of other data or of another order, CheckpointError for one of another step: weights and data are one.
    """
    if CURSOR not in extra:
        if not data.asked.is_read_plainly:
            raise CheckpointError(
                "data cursor", "(missing)", "the checkpoint is of a run over one folder; give data its path alone"
            )
        return Cursor.after(step, order, data.manifests).to_json()
    saved = str(extra[CURSOR])
    if (reached := Cursor.from_json(saved).next_step(order, data.manifests, data.asked.paths)) != step:
        raise CheckpointError(
            "data cursor", f"after step {reached}", f"weights and data cursor differ: the weights are of step {step}"
        )
    return saved


def resume_data(training: "Training", saved: Mapping[str, object]) -> None:
    """Goes on without the damaged blocks that the run had set aside when this was saved. Raises DataError for no cursor, or one of
    another order."""
    if CURSOR in saved:
        training.feed.resume(Cursor.from_json(str(saved[CURSOR])))


def _check_data(training: "Training", found: Found) -> str:
    """Goes on in the data of a checkpoint, whose cursor it gives. Raises as `check_cursor` and `resume_data` do."""
    extra, was = found.manifest.extra, found.manifest.origin.data
    if CURSOR not in extra and was != training.identity.origin.data:
        places = ", ".join(training.data.asked.paths.values())
        fix = (
            f"the checkpoint was made with other data than lies in {places}, which has the hash {training.identity.origin.data}; "
            "put that back there, or start a new job"
        )
        raise CheckpointError(f"data of checkpoint {found.name}", was, fix)
    resume_data(training, extra)
    return check_cursor(extra, found.manifest.step, training.order, training.data)


def resumed(training: "Training", found: Found, patience: Patience) -> tuple[int, float, str]:
    """Goes on from a checkpoint: after which step, with which first held-out loss, the digest of what was loaded. A collective of
    all ranks. Raises CheckpointError where weights and data cursor differ, or loading has changed anything, and as `load` does."""
    _check_data(training, found)  # before gigabytes are read
    identity, device = training.identity, training.rank.device
    found = load(found, of_any_data(identity.origin), training.model, training.optimizer, device, patience, identity.tensors)
    step, extra = found.manifest.step, {CURSOR: _check_data(training, found), **found.manifest.extra}
    try:
        first = float.fromhex(str(extra["val_loss_first"]))
        training.guard.restore(extra)
        training.expert_places.restore(extra)
        wanted = {**state_numbers(training, step, first), **digest_numbers(training, step)}
    except (KeyError, ValueError) as error:
        raise CheckpointError(f"checkpoint {found.name}", dict(extra), "lacks the run's own numbers") from error
    if found.manifest.dtype != training.identity.dtype:
        fix = f"was made in {found.manifest.dtype} and newer ones, which are damaged, in {training.identity.dtype}; move those away"
        raise CheckpointError(f"checkpoint {found.name}", "dtype", fix)
    if extra.get(STATE) != wanted[STATE]:
        fix = (
            f"is the digest of what was saved, and what is in place now has {wanted[STATE]}: loading has changed weights or moments"
        )
        raise CheckpointError(f"checkpoint {found.name}", extra.get(STATE), fix)
    if dict(extra) != wanted:
        raise CheckpointError(f"checkpoint {found.name}", dict(extra), f"weights and data cursor differ; step {step} has {wanted}")
    for line in found.skipped:
        _log.warning("checkpoint refused: %s", line)
    _log.info("resumed after step %d from %s (%s)", step, found.name, found.manifest.dtype)
    if training.rank.rank == 0:
        size_bytes = found.manifest.size_bytes  # its maker may have died before it could say so
        training.session.checkpoint(step=step, path=found.path, digest=found.digest, size_bytes=size_bytes)
        training.session.resumed(step=step, checkpoint=found.name, skipped=found.skipped)
    return step, first, found.digest
