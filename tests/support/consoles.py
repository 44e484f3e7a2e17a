"""What a console says unasked while it waits for an answer: on a busy machine it comes, elsewhere it does not."""

from __future__ import annotations

import json
import re
from typing import Any

_WAITS = re.compile(
    r"^(?:.*; Ctrl-C gives the prompt back|ranks? \S+ (?:is|are) (?:in [^;\n]*|not back yet))\n", re.MULTILINE
)


def without_waits(shown: str) -> str:
    """The text without lines that say where a rank is that has not answered yet."""
    return _WAITS.sub("", shown)


def records(shown: str) -> list[dict[str, Any]]:
    """The lines of JSON, without such records."""
    said = [json.loads(line) for line in shown.splitlines()]
    return [one for one in said if not _WAITS.fullmatch(f"{one.get('notice', '')}\n")]
