"""Which variables of an environment give the right to a store: they are passed on in memory alone, never through a file."""

import re
from collections.abc import Mapping
from typing import Final

_CREDENTIAL: Final = re.compile(r"(?:AWS|AZURE|GOOGLE)_\w*(?:KEY|SECRET|TOKEN|SAS|CREDENTIALS)\w*", re.ASCII | re.IGNORECASE)
"""By pattern: object stores honour many names for the same, and newer ones more. A name too many is passed on all the same."""


def is_credential(name: str) -> bool:
    return _CREDENTIAL.fullmatch(name) is not None


def parted(environ: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The environment without them, and they."""
    own = {name: value for name, value in environ.items() if value and value.isascii() and is_credential(name)}
    return {name: value for name, value in environ.items() if name not in own}, own
