"""The filter of system calls, run on the kernel here and followed by hand for the other machine."""

import errno
import os
import struct
import subprocess
import sys

import pytest

from phalanx.operate.agent.isolation.calls import refusals

ALLOW, NO_RIGHT, NO_CALL = 0x7FFF0000, 0x50000 | errno.EPERM, 0x50000 | errno.ENOSYS
ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


def answer(machine: str, arch: int, number: int, first: int = 0) -> int:
    """What the kernel would answer: classic BPF, as far as the filter uses it."""
    words, at, value = (
        [struct.unpack("HBBI", refusals(machine)[begin : begin + 8]) for begin in range(0, len(refusals(machine)), 8)],
        0,
        0,
    )
    while True:
        code, yes, no, constant = words[at]
        at += 1
        if code == 0x20:
            value = {0: number, 4: arch, 16: first & 0xFFFFFFFF}[constant]
        elif code == 0x06:
            return int(constant)
        else:
            holds = {0x15: value == constant, 0x45: bool(value & constant), 0x35: value >= constant}[code]
            at += yes if holds else no


@pytest.mark.parametrize(("machine", "clone", "unshare", "keyctl"), [("x86_64", 56, 272, 250), ("aarch64", 220, 97, 219)])
def test_it_refuses_user_namespaces_and_keyrings_and_nothing_else(machine: str, clone: int, unshare: int, keyctl: int) -> None:
    arch = ARCH[machine]
    for call in (clone, unshare):
        assert answer(machine, arch, call, 0x10000000 | 0x11) == NO_RIGHT
        assert answer(machine, arch, call, 0x11) == ALLOW
    assert answer(machine, arch, keyctl) == answer(machine, arch, keyctl - 1) == answer(machine, arch, keyctl - 2) == NO_RIGHT
    assert answer(machine, arch, 435) == NO_CALL
    others = set(range(460)) - {435, keyctl, keyctl - 1, keyctl - 2, clone, unshare}
    assert {answer(machine, arch, call, 0xFFFFFFFF) for call in others} == {ALLOW}


@pytest.mark.parametrize("machine", sorted(ARCH))
def test_calls_of_another_architecture_do_not_exist(machine: str) -> None:
    assert answer(machine, 0x40000003, 1) == NO_CALL  # i386
    assert answer("x86_64", ARCH["x86_64"], 0x40000000 | 56) == NO_CALL  # x32
    assert {other for other in ARCH if answer(machine, ARCH[other], 1) == ALLOW} == {machine}


def test_a_machine_without_a_filter_is_told_of() -> None:
    with pytest.raises(OSError, match="no filter is known for vax"):
        refusals("vax")


def test_programs_with_threads_and_children_run_under_it() -> None:
    program = """
import subprocess, sys, threading
from phalanx.operate.agent.isolation import calls, kernel
kernel.no_new_privileges(); kernel.refuse_calls(calls.refusals())
threading.Thread(target=lambda: print("a thread", flush=True)).start()
print(subprocess.run(["true"]).returncode, flush=True)
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env={**os.environ}).stdout
    assert sorted(said.split("\n")) == ["", "0", "a thread"]
