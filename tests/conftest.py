"""A failed test that attacks a promise is a row of the table too."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.promises.figures import record


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Write what broke for each promise that the test's marker names: `@pytest.mark.promise("P24")`."""
    report = yield
    if report.failed and call.excinfo:
        reason = next(iter(str(call.excinfo.value).splitlines()), "") or call.excinfo.typename
        for marker in item.iter_markers("promise"):
            for promise in marker.args:
                record(promise, item.name, f"broken: {reason[:160]}", False)
    return report
