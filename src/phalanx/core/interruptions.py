"""Why a shim ended ranks with which nothing was wrong, as its report says it. Standard library only: the shim imports this."""

from typing import Final

WITH_PLATFORM: Final = "they were stopped with the platform"
"""The shim was itself told to end."""

WITH_LEASE: Final = "its node's lease ended"
"""They must not outlive it."""

WITH_BOOT: Final = "its node was started again"
"""Said by the agent: the shim was of an earlier boot."""
