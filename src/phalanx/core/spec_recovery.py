"""What is wrong with how a job recovers inside its gang. Part of `spec_parse`: (field, value, good, what to change)."""

from collections.abc import Iterable
from typing import Final

from phalanx.core.recipe import LlamaRecipe
from phalanx.core.spec import JobSpec, Recovery
from phalanx.core.spec_sharing import Check, parsed
from phalanx.core.timeouts import timeouts

SPARES_MAX: Final = 8
_ACCUMULATE: Final = LlamaRecipe().accumulate


def recovery_checks(spec: JobSpec) -> Iterable[Check]:
    recovery, plain = spec.recovery, Recovery()
    if not recovery.in_gang:
        for name in ("spares", "hang_timeout", "min_ranks", "replicas"):
            value = getattr(recovery, name)
            yield f"recovery.{name}", value, value == getattr(plain, name), "write recovery.in_gang: true with it, or leave it out"
        return
    yield "recovery.spares", recovery.spares, 0 <= recovery.spares <= SPARES_MAX, f"write 0 to {SPARES_MAX}"
    yield parsed("recovery.hang_timeout", recovery.hang_timeout, lambda: timeouts(recovery.hang_ms))
    longest = spec.max_duration_ms
    within = longest is None or recovery.hang_ms < longest
    yield "recovery.hang_timeout", recovery.hang_timeout or "10m", within, f"write less than max_duration ({spec.max_duration})"
    yield from _size(spec)
    yield from _where_it_works(spec)


def gang_sizes(spec: JobSpec, world_size: int) -> tuple[int, ...]:
    """How many ranks a gang of `world_size` may have while some have no process; () where it needs all of them.

    A step's microbatches are those of the whole gang, whatever its size: fewer ranks make more of them each.
    """
    least = spec.recovery.min_ranks
    if not least:
        return ()
    microbatches = _microbatches_of_rank(spec) * world_size
    return tuple(size for size in range(least, world_size) if microbatches % size == 0)


def _size(spec: JobSpec) -> Iterable[Check]:
    """`resources.gpus` has been found well formed before."""
    least, ranks = spec.recovery.min_ranks, spec.num_nodes * spec.resources.devices.count
    yield "recovery.min_ranks", least, 0 <= least <= ranks, f"write a number from 1 to all ranks ({ranks}), or 0 for all"
    microbatches = _microbatches_of_rank(spec) * ranks
    fits = ", ".join(str(size) for size in range(1, ranks + 1) if microbatches % size == 0)
    fix = f"write one of {fits}: the numbers of ranks that share a step's {microbatches} microbatches evenly"
    yield "recovery.min_ranks", least, least == 0 or microbatches % least == 0, fix
    replicas = spec.recovery.replicas
    yield "recovery.replicas", replicas, replicas in (0, 1), "write 1 for one in another rank's keeper, or 0 for none"
    yield "recovery.replicas", replicas, not replicas or ranks > 1, "a gang of one rank has nobody to hold them: leave it out"


def _microbatches_of_rank(spec: JobSpec) -> int:
    """Of a rank in each step, of the whole gang. A script's are its own affair, and may be as few as one."""
    said = spec.hyperparameters.get("accumulate", _ACCUMULATE) if spec.recipe else 1
    return said if isinstance(said, int) and said > 0 else 1  # anything else is refused by its own name


def _where_it_works(spec: JobSpec) -> Iterable[Check]:
    leave_out = "leave recovery.in_gang out"
    on_disk = bool(spec.recipe) and spec.hyperparameters.get("offload") == "nvme"
    fix = f"write cpu or none: to keep each step in memory would bring all of the file there; or {leave_out}"
    yield "hyperparameters.offload", "nvme", not on_disk, fix
    yield "recovery.in_gang", True, spec.kind == "train", f"write kind: train, whose steps tell when a rank hangs, or {leave_out}"
    yield "recovery.in_gang", True, not spec.environment.image, f"ranks in a container restart whole for now: {leave_out}"
