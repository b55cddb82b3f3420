"""Names of things. Plain strings at runtime, distinct types to mypy."""

import re
from typing import Final, NewType

JobId = NewType("JobId", str)
"""`<job name>-<sequence number>`, e.g. `tiny-lm-7`; unique for the life of a home."""

AttemptId = NewType("AttemptId", str)
"""`<job id>.<attempt number>`, e.g. `tiny-lm-7.2`: one launch of a job."""

NodeId = NewType("NodeId", str)

NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
"""What users may call jobs, projects, queues and models: a DNS label, so it is safe in paths, URLs and shells."""

_ATTEMPT: Final = re.compile(rf"({NAME.pattern}-[0-9]{{1,12}})\.([0-9]{{1,9}})")


def job_id(name: str, sequence: int) -> JobId:
    return JobId(f"{name}-{sequence}")


def attempt_id(job: JobId, number: int) -> AttemptId:
    return AttemptId(f"{job}.{number}")


def split_attempt(attempt: AttemptId) -> tuple[JobId, int]:
    """The job and number of an attempt. Raises ValueError when the text is not an attempt id."""
    matched = _ATTEMPT.fullmatch(attempt)
    if matched is None:
        raise ValueError(f"{attempt!r} is not an attempt id such as 'tiny-lm-7.2'")
    return JobId(matched[1]), int(matched[2])
