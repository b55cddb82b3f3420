"""What the trainer ran in, as one line for the lineage."""

import hashlib
import importlib.metadata
import platform
from collections.abc import Mapping

import torch


def describe_environment() -> str:
    """Python, torch, Phalanx (whose recipe is the code of a job without a workdir), and the SHA-256 over every installed
    distribution with its version."""
    names = sorted({f"{dist.metadata['Name']}=={dist.version}" for dist in importlib.metadata.distributions()})
    digest = hashlib.sha256("\n".join(names).encode()).hexdigest()
    ours = importlib.metadata.version("phalanx")
    return (
        f"python {platform.python_version()}, torch {torch.__version__}, phalanx {ours}, {len(names)} distributions sha256:{digest}"
    )


def lock_of(environ: Mapping[str, str]) -> str:
    """The lock that the agent built this environment from, by name and content; '' where there was none."""
    told = environ.get("PHALANX_ENVIRONMENT", "")
    return told if " sha256:" in told else ""
