"""Memory that a GPU copies into is let go of before its address is another's. The driver is a stand-in, which refuses as the real
one was seen to on two GPUs."""

import logging

import pytest
import torch

from phalanx.job.checkpoint.beside import PageLocks

ALREADY_REGISTERED = 712
CPU = torch.device("cpu")


class Driver:
    """Knows memory by its address, as CUDA does."""

    def __init__(self) -> None:
        self.known: dict[int, int] = {}

    def cudaHostRegister(self, address: int, size: int, _: int) -> int:  # noqa: N802 (the driver's name)
        if any(address < other + length and other < address + size for other, length in self.known.items()):
            return ALREADY_REGISTERED
        self.known[address] = size
        return 0

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802
        del self.known[address]
        return 0


def test_what_a_generation_locked_the_next_one_may_lock_again() -> None:
    driver, memory = Driver(), torch.zeros(4096, dtype=torch.uint8)
    for _ in range(3):
        locks = PageLocks(CPU, driver)
        locks.lock(memory)
        assert list(driver.known) == [memory.data_ptr()]
        locks.release()
        locks.release()
        assert not driver.known


def test_a_refusal_is_a_warning_and_leaves_others_locked(caplog: pytest.LogCaptureFixture) -> None:
    driver, memory = Driver(), torch.zeros(4096, dtype=torch.uint8)
    first, second = PageLocks(CPU, driver), PageLocks(CPU, driver)
    first.lock(memory)
    with caplog.at_level(logging.WARNING):
        second.lock(memory[1024:])
    assert f"error {ALREADY_REGISTERED}" in caplog.text
    second.release()
    assert list(driver.known) == [memory.data_ptr()]


def test_without_a_gpu_nothing_is_locked() -> None:
    locks = PageLocks(CPU)
    locks.lock(torch.zeros(8, dtype=torch.uint8))
    locks.release()
