"""What introspection shows, in a few words: ``waits for cache (Lock), held by writer, step 17``."""

from __future__ import annotations

from breakranks.explain.diagnosis import SaidTogether
from breakranks.show.wording.collective_wording import span
from breakranks.show.wording.thread_wording import said_wait


def said_text(said: SaidTogether | None) -> str:
    if said is None:
        return ""
    wait = [said_wait(said.wait)] if said.wait is not None else []
    return ", ".join([*wait, *(span(counter, "-", " ") for counter in said.counters)])
