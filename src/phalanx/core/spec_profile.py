"""What is wrong with the traces that a job asks for, and how ranks are told of them. Part of `spec_parse`: (field, value, good,
what to change)."""

from collections.abc import Iterable, Mapping
from typing import Final

from phalanx.core import wire
from phalanx.core.errors import SpecError
from phalanx.core.profile import TRACED_STEPS_MAX
from phalanx.core.spec import JobSpec, ProfileSpec
from phalanx.core.spec_sharing import Check

PROFILE_VARIABLE: Final = "PHALANX_PROFILE"
"""Of a rank's environment: the steps to trace as JSON; not there where the job asks for none."""
STEP_MAX: Final = 10**12


def profile_checks(spec: JobSpec) -> Iterable[Check]:
    asked = spec.profile
    if asked is None:
        return
    yield "profile", _said(asked), spec.kind == "train", "is of steps, which only jobs of kind: train have: leave it out"
    yield from words(asked)


def words(asked: ProfileSpec) -> Iterable[Check]:
    """Of what a rank is told too."""
    yield "profile.first", asked.first, 1 <= asked.first <= STEP_MAX, "write a step's number, from 1"
    yield "profile.count", asked.count, 1 <= asked.count <= TRACED_STEPS_MAX, f"write 1 to {TRACED_STEPS_MAX} steps"


def check_within(spec: JobSpec, steps: int) -> None:
    """Raises SpecError for steps that a recipe's run of `steps` does not make."""
    asked = spec.profile
    if asked is None or asked.first + asked.count - 1 <= steps:
        return
    if asked.first > steps:
        raise SpecError("profile.first", asked.first, f"the run ends with step {steps}: write an earlier one")
    raise SpecError("profile.count", asked.count, f"the run ends with step {steps}: write at most {steps - asked.first + 1}")


def profile_of(environ: Mapping[str, str]) -> ProfileSpec | None:
    """What a rank was told. Raises ValueError for what cannot be."""
    text = environ.get(PROFILE_VARIABLE, "")
    if not text:
        return None
    found: ProfileSpec = wire.loads(ProfileSpec, text)
    for name, value, good, fix in words(found):
        if not good:
            raise ValueError(f"{name}: {value!r}: {fix}")
    return found


def profile_variable(asked: ProfileSpec | None) -> dict[str, str]:
    """The reverse."""
    return {PROFILE_VARIABLE: wire.dumps(ProfileSpec, asked)} if asked is not None else {}


def _said(asked: ProfileSpec) -> str:
    return f"first: {asked.first}, count: {asked.count}"
