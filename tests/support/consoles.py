"""Unsolicited lines that a console prints while it waits for an answer. They appear only on a busy machine."""

from __future__ import annotations

import json
import re
from typing import Any

_WAITS = re.compile(
    r"^(?:.*; Ctrl-C returns to the prompt|ranks? \S+ (?:is|are) (?:in [^;\n]*|not answering yet))\n", re.MULTILINE
)


def without_waits(shown: str) -> str:
    """The text without the lines about ranks that have not answered yet."""
    return _WAITS.sub("", shown)


def records(shown: str) -> list[dict[str, Any]]:
    """The JSON lines, without records of such ranks."""
    said = [json.loads(line) for line in shown.splitlines()]
    return [one for one in said if not _WAITS.fullmatch(f"{one.get('notice', '')}\n")]
