"""Reasons to wait, in words: one and many, and never a list without an end."""

import pytest

from phalanx.core.ids import JobId
from phalanx.core.reasons import (
    ArrayFull,
    Dependencies,
    DependencyCycle,
    Geometry,
    Kept,
    MakingRoom,
    NeverFits,
    OverBudget,
    OverLimit,
    OverQuota,
    Reason,
)

A, B, C, D, E = (JobId(f"job-{number}") for number in range(1, 6))


@pytest.mark.parametrize(
    ("reason", "sentence"),
    [
        (MakingRoom((A,), 1), "starts as soon as job-1 lets go of 1 device kept for it"),
        (MakingRoom((A, B), 2), "starts as soon as job-1, job-2 let go of 2 devices kept for it"),
        (MakingRoom((A, B, C, D, E), 8), "starts as soon as job-1, job-2, job-3 and 2 more let go of 8 devices kept for it"),
        (MakingRoom((), 1), "starts as soon as 1 device kept for it comes free"),
        (OverBudget("b", "GPU-hours", 0.01, 0.016612, None), "waits for budget: b has spent 0.01661 of 0.01 GPU-hours"),
        (MakingRoom((), 8), "starts as soon as 8 devices kept for it come free"),
        (Kept("spot to come", None), "would fit, but the devices are kept for spot to come"),
        (Kept("spot to come", 36_999), "would fit, but the devices are kept for spot to come until 1970-01-01 00:00:37 UTC"),
        (Dependencies((A,)), "waits for job-1 to succeed"),
        (Dependencies((A, B, C, D, E)), "waits for job-1, job-2, job-3 and 2 more to succeed"),
        (Dependencies((), (A,)), "never starts: job-1, which must succeed before it, did not; retry that one, or cancel this"),
        (
            Dependencies((C,), (A, B)),
            "never starts: job-1, job-2, which must succeed before it, did not; retry them, or cancel this",
        ),
        (DependencyCycle((A, B)), "never starts: it waits for job-2, which waits for job-1; cancel one of them"),
        (ArrayFull("job-1", 2), "waits for its array: job-1 may have 2 running at once, and has"),
        (OverLimit("lab", "cpu", 1, 1, 2), "waits for lab: its limit is 1 cpu device, it uses 1, this asks for 2"),
        (
            OverQuota("lab", "*", 2, 1, 2, "it may not use more (borrow: false)"),
            "waits for quota: lab is guaranteed 2 devices and uses 1, this asks for 2; it may not use more (borrow: false)",
        ),
        (
            NeverFits("CPU slots on a node", "8", "2 (a)", "set resources.gpus: 2, or add nodes"),
            "never fits: asks for 8 CPU slots on a node, the largest possible is 2 (a); set resources.gpus: 2, or add nodes",
        ),
        (
            NeverFits("nodes with cpu:2", "1", "0", "add nodes"),
            "never fits: asks for 1 node with cpu:2, the largest possible is 0; add nodes",
        ),
        (
            NeverFits("memory on a node", "8.0 GiB", "4.0 GiB (a)", "add nodes"),
            "never fits: asks for 8.0 GiB of memory on a node, the largest possible is 4.0 GiB (a); add nodes",
        ),
        (
            Geometry(2, 2, 0, "", 2, "", 1),
            "waits for devices that lie together: 2 are free, but no node has 2 free; the most on one is 1",
        ),
        (
            Geometry(12, 14, 8, "", 4),
            "waits for devices that lie together: 14 are free, but of the 12 asked for at once only 8 lie 4 on a node",
        ),
    ],
)
def test_what_is_said(reason: Reason, sentence: str) -> None:
    assert reason.sentence() == sentence
