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


def abilities() -> tuple[str, ...]:
    """Names from `core.features`, sorted. Asked again at each Hello, since programs come and go while an agent runs."""
    of_machine = {features.LOCK: find_uv() is not None, features.IMAGE: find_runtime() is not None}
    return tuple(sorted({*ALWAYS, *(name for name, there in of_machine.items() if there)}))
