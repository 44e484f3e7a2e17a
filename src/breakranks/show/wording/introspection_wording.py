"""What introspection shows, in a few words: ``waits for cache (Lock), held by writer, step 17``."""

from __future__ import annotations

from breakranks.explain.diagnosis import CommonReport
from breakranks.show.wording.collective_wording import span
from breakranks.show.wording.thread_wording import reported_wait


def report_text(report: CommonReport | None) -> str:
    if report is None:
        return ""
    wait = [reported_wait(report.wait)] if report.wait is not None else []
    return ", ".join([*wait, *(span(counter, "-", " ") for counter in report.counters)])
