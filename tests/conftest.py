"""A test that was not run is told by name; as root or in CI it fails the run, so that nothing goes untested unnoticed."""

import os

import pytest
from hypothesis import settings

settings.register_profile("phalanx", deadline=None)  # a busy machine or disk is no failure of ours
settings.load_profile("phalanx")
MUST_RUN_ALL = os.geteuid() == 0 or os.environ.get("CI", "").lower() in ("1", "true")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.geteuid() == 0:
        return
    for item in items:
        if item.get_closest_marker("needs_root"):
            item.add_marker(pytest.mark.skip(reason="not run: needs root"))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or not MUST_RUN_ALL:
        return
    for report in reporter.stats.get("skipped", []):
        reporter.write_line(f"not run, which counts as a failure here: {report.nodeid}", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
