"""A test that was not run is told by name; as root or in CI it fails the run, so that nothing goes untested unnoticed."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests import postgres
from tests.drawn import ANYHOW, examples

# A busy machine or disk is no failure of ours.
usual = examples(settings.get_profile("default").max_examples)
settings.register_profile("phalanx", deadline=None, max_examples=usual, suppress_health_check=ANYHOW)
settings.load_profile("phalanx")
gc.disable()  # while tests are collected, which took three tenths longer with it
MUST_RUN_ALL = os.geteuid() == 0 or os.environ.get("CI", "").lower() in ("1", "true")

LONGEST = (
    "job/train/test_train_recovery.py",
    "simulation/test_seeds.py",
    "e2e/test_kill_points.py",
    "e2e/test_main_job.py",
    "e2e/test_recovery_nodes.py",
    "job/train/test_parallel.py",
    "e2e/test_chaos.py",
    "job/train/test_recovery_script.py",
    "e2e/test_bad_input.py",
    "job/train/test_expert_gang.py",
    "e2e/test_sharing.py",
    "operate/engines/test_local.py",
    "e2e/test_recovery.py",
    "e2e/soak/test_soak.py",
    "e2e/test_stragglers.py",
    "benchmarks/test_recovery_benchmark.py",
    "e2e/test_checkpoints_in_a_store.py",
    "operate/agent/test_lease.py",
    "e2e/test_live_artifacts.py",
    "operate/control/api/test_openapi.py",
    "e2e/test_gc_and_store.py",
    "e2e/test_joined_node.py",
    "operate/control/test_standby.py",
    "job/train/test_exchange_gang.py",
)
"""Files of more than a minute begin first, the longest of all at once: whoever comes to one last works on alone. Those that compute
stand between those that wait."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_is_short)
    if os.geteuid() == 0:
        return
    for item in items:
        if item.get_closest_marker("needs_root"):
            item.add_marker(pytest.mark.skip(reason="not run: needs root"))


def pytest_collection_finish() -> None:
    gc.freeze()  # nothing of it ever goes
    gc.enable()


def _is_short(item: pytest.Item) -> int:
    here = item.path.relative_to(Path(__file__).parent).as_posix()
    return LONGEST.index(here) if here in LONGEST else len(LONGEST)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """What is marked `both_databases` runs on SQLite and on PostgreSQL."""
    marked = metafunc.definition.get_closest_marker
    if "database" in metafunc.fixturenames and marked("both_databases") and not marked("sqlite_only"):
        metafunc.parametrize("database", ["sqlite", "postgres"], indirect=True)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[postgres.Postgres]:
    """One server for all tests of this process that ask for one."""
    if postgres.programs() is None:
        pytest.skip("not run: needs PostgreSQL, of Debian's package postgresql")
    server = postgres.Postgres()
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.fixture
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Path | str:
    """Where a store may begin: a path for SQLite, a URL for PostgreSQL."""
    if getattr(request, "param", "sqlite") == "sqlite":
        (tmp_path / "home").mkdir(exist_ok=True)
        return tmp_path / "home" / "phalanx.db"
    server: postgres.Postgres = request.getfixturevalue("postgres_server")
    return server.cleaned()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or not MUST_RUN_ALL:
        return
    for report in reporter.stats.get("skipped", []):
        reporter.write_line(f"not run, which counts as a failure here: {report.nodeid}", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
