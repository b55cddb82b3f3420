"""Which of the agent's variables ranks get that are kept apart: a list of what may come, so nothing comes by being new. Pure."""

import re
from collections.abc import Mapping
from typing import Final

_ALLOWED: Final = re.compile(
    r"PATH|PYTHONPATH|LD_LIBRARY_PATH|VIRTUAL_ENV|TZ|LANG|LANGUAGE|LC_[A-Z]+|"
    r"(?:CUDA|NVIDIA|NCCL|UCX|FI|OMP|MKL|GLOO|HSA|ROCR)_[A-Z0-9_]+"
)
"""Where programs are, how text is shown, and how the machine's devices and networks are used."""


def allowed(outer: Mapping[str, str], home: str, user: str, files: Mapping[str, str]) -> dict[str, str]:
    """Of `outer`, and who the ranks are: programs ask for a home and a name, and the user is in no list of the machine's. files:
    where secrets lie, by their names."""
    kept = {name: value for name, value in outer.items() if _ALLOWED.fullmatch(name)}
    kept |= {f"{name}_FILE": path for name, path in files.items()}
    return {**kept, "HOME": home, "USER": user, "LOGNAME": user, "TMPDIR": "/tmp"}  # noqa: S108 - of this attempt alone
