"""What this agent can do beyond the first protocol, in one place: told to the control plane in every Hello."""

from typing import Final

from phalanx.core import features
from phalanx.operate.agent.environments import find_uv
from phalanx.operate.agent.images import find_runtime

ALWAYS: Final = (
    features.ARTIFACTS,
    features.CHANNELS,
    features.CHAOS,
    features.CHECKPOINT_STORE,
    features.DATA_SPEC,
    features.LAYOUT,
    features.PIPELINE,
    features.LEASE,
    features.PROFILE,
    features.RECOVERY,
    features.RECOVERY_NODES,
    features.SECRETS,
    features.SHRINK,
    features.TRACES,
)
"""Of the code alone. What depends on the machine is added in `abilities`."""


def abilities(apart: bool = False) -> tuple[str, ...]:
    """Names from `core.features`, sorted. Asked again at each Hello, since programs come and go while an agent runs. apart: jobs
    are kept apart, so nothing of a job's is run as the agent: neither the builds of its lock nor the tools of its image."""
    kept = {features.SECRET_FILES} if apart else set()
    of_machine = {features.LOCK: not apart and find_uv() is not None, features.IMAGE: not apart and find_runtime() is not None}
    return tuple(sorted({*ALWAYS, *kept, *(name for name, there in of_machine.items() if there)}))
