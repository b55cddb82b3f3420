"""A control plane on a bench for every test that asks for one."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.operate.control.control_bench import Bench, DatabaseLock, new_bench


@pytest.fixture
def bench(tmp_path: Path, database: Path | str) -> Iterator[Bench]:
    """A fresh home; at the end the log still folds into what the tables hold."""
    bench = new_bench(tmp_path / "home", database)
    yield bench
    bench.check()
    bench.store.close()


@pytest.fixture
def locked(bench: Bench) -> DatabaseLock:
    """`with locked:` keeps the bench's database from being written."""
    return DatabaseLock(bench.database)
