"""Which variables of an environment give the right to a store: they are passed on in memory alone, never through a file."""

from collections.abc import Mapping
from typing import Final

CREDENTIALS: Final = (
    "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN",
    "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN", "AZURE_CLIENT_SECRET",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
)  # fmt: skip


def parted(environ: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The environment without them, and they."""
    own = {name: environ[name] for name in CREDENTIALS if environ.get(name, "").isascii() and environ.get(name)}
    return {name: value for name, value in environ.items() if name not in own}, own
