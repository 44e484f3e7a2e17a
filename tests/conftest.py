"""What holds for every test: its lane, what is printed of it when it fails, what is summed up at the end."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from support import evidence, stalls
from support.waiting import wait_for

TESTS = Path(__file__).parent
# A machine that stands still for a moment is no fault of the code. Every run has the same examples: a rare one must not
# fail an unrelated change. scripts/fuzz looks for new ones.
settings.register_profile("patient", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# Folders whose tests share a rig, and so a lane; folders whose tests share nothing. Elsewhere a file stays together.
ONE_LANE = ("cluster",)
TEST_BY_TEST = ("hangs", "stress")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", dest="every_job", help="run every live job, not one of each kind")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep tests together where there are lanes. Not by marks of groups: with pytest 9, xdist does not see them."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFolder(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    return ByFolder(config, log)


def group_of(nodeid: str) -> str:
    """What runs in one lane, in order: a folder, a file, or a test."""
    path = nodeid.partition("::")[0]
    folder = path.removeprefix("tests/").partition("/")[0]
    return folder if folder in ONE_LANE else nodeid if folder in TEST_BY_TEST else path


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Add to a report how often the test was repeated, and to a failure what is seen of its processes and folder."""
    report = yield
    report.user_properties += [("repeated", words) for words in stalls.take_repetitions()]
    kept = evidence.take()
    if report.failed and call.excinfo is not None:
        if kept:
            report.sections.append(("processes that the test ended", kept))
        if told := evidence.of_watched():
            report.sections.append(("what the processes of the test said", told))
        if living := evidence.living():
            report.sections.append(("processes that live", evidence.of_processes(living)))
        folder = getattr(item, "funcargs", {}).get("tmp_path")
        if folder is not None and folder.exists():
            report.sections.append((f"folder {folder}", evidence.of_folder(folder)))
    return report


# What outlived the tests of a lane, as the lane said it at its end.
_left_behind: list[str] = []


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    _left_behind.append(getattr(node, "workeroutput", {}).get("left", ""))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Nothing may outlive the tests of a lane: it fails them."""
    if hasattr(session.config, "workeroutput"):  # in a lane
        with contextlib.suppress(AssertionError):
            wait_for("what the last test ended to be gone", lambda: not evidence.living(), 30)
        session.config.workeroutput["left"] = evidence.of_processes(evidence.living())
    elif any(_left_behind):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Seconds by folder, and what was repeated because the machine stood still."""
    seconds: Counter[str] = Counter()
    repeated: Counter[tuple[str, str]] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[report.nodeid.removeprefix("tests/").partition("/")[0]] += report.duration
                if report.when == "call":
                    for name, words in report.user_properties:
                        if name == "repeated":
                            repeated[report.nodeid, words] += 1
    for words in filter(None, _left_behind):
        terminalreporter.section("left behind by the tests of a lane", red=True)
        terminalreporter.line(words)
    terminalreporter.section("seconds by folder")
    for folder, count in seconds.most_common():
        terminalreporter.line(f"{count:8.1f} {folder}")
    terminalreporter.section(f"repeated because the machine stood still: {sum(repeated.values())}")
    for (test, words), times in repeated.items():
        terminalreporter.line(f"{times} times {test}: {words}")
