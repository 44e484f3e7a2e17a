"""The last completed step that a log tells of."""

from __future__ import annotations

import re

_STEP = re.compile(
    r"(?i)(?<![\w-])(?:global[_ ]?)?(?:step|iter(?:ation)?|batch|update)s?\b[\s:=#\[(]*\d+"
    r"|(?<![\w-])\d+(?:\.\d+)?\s?%\|[^|]*\|\s*\d+/\d+"  # tqdm
)
_EPOCH = re.compile(r"(?i)(?<![\w-])epochs?\b[\s:=#\[(]*\d+")
# A step that only begins is not a completed one; code in a traceback is no report.
_NOT_COMPLETED = re.compile(
    r"(?i)\b(?:start|begin|resum|load|restor)|^\s{4}|^\s*File \"|Error|Exception|==|[\[(]?(?:E|W)\d{4} "
)
_SHOWN_CHARACTERS = 160


def last_step(lines: list[str]) -> str:
    """Return the last line that reports a step, else an epoch; "" if there is none."""
    for pattern in (_STEP, _EPOCH):
        for line in reversed(lines):
            if pattern.search(line) and not _NOT_COMPLETED.search(line):
                return line.strip()[:_SHOWN_CHARACTERS]
    return ""
