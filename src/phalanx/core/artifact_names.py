"""What the name of a file in PHALANX_ARTIFACTS may be: checked where it is found, where it is told, and where it is asked for."""

from typing import Final
from unicodedata import category

FILES_MAX: Final = 10_000
"""Of one attempt. More belong into one archive, or into the job's folder."""

NAME_CHARS_MAX: Final = 512
_STEERING: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Control, text direction, half characters and odd line breaks: whoever sees such a name sees something else."""


def is_artifact_name(name: str) -> bool:
    """A relative path with '/' that stays in its folder, of whole and visible characters."""
    if not 0 < len(name) <= NAME_CHARS_MAX or any(category(one) in _STEERING for one in name):
        return False
    return all(part not in ("", ".", "..") for part in name.split("/"))
