"""What the flight recorder dumps that a log names add to its report."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable

from breakranks.backend.recorded_job import load_recorded
from breakranks.errors import BreakranksError
from breakranks.explain.diagnosis import Diagnosis
from breakranks.explain.verdict import explain
from breakranks.jobs.targets import DumpFolder
from breakranks.logs.crash_report import CrashReport
from breakranks.logs.report_builder import with_recorded


def with_dumps(report: CrashReport) -> CrashReport:
    """Return a report with the ranks that the dumps show to be behind, if the dumps are on this machine."""
    diagnosis = _explained(report.dumps)
    verdict = diagnosis.verdict if diagnosis is not None else None
    return report if verdict is None else with_recorded(report, verdict.culprits, verdict.confidence)


def _explained(paths: Iterable[str]) -> Diagnosis | None:
    """Return what these files show together; None if none can be read."""
    here = [path for path in paths if os.path.isfile(path)]
    if not here:
        return None
    with tempfile.TemporaryDirectory(prefix="breakranks-dumps-") as folder:
        for number, path in enumerate(here):
            os.makedirs(f"{folder}/{number}")
            os.symlink(os.path.abspath(path), f"{folder}/{number}/{os.path.basename(path)}")
        try:
            return explain(load_recorded(DumpFolder(folder), None))
        except BreakranksError:
            return None
