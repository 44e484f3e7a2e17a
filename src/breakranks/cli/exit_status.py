"""The exit status of every command: one table, for ``--help``, the docs and the code."""

from __future__ import annotations

# By command, what 0, 1 and 2 mean.
MEANINGS = {
    "why": ("no rank hangs", "a verdict was found", "the job could not be looked at"),
    "collectives": (
        "no rank waits for another",
        "ranks wait, or their calls differ",
        "no flight recorder could be read",
    ),
    "ps": ("jobs were found", "", "no job was found, or none could be looked at"),
    "stacks": ("at least one stack was read", "", "no stack was read"),
    "top": ("no rank hangs (--once, files)", "a verdict was found", "the job could not be looked at"),
    "console": ("every rank answered", "a rank answered with an error, or not at all", "no rank was there"),
    "attach": ("every rank answered", "a rank answered with an error, or not at all", "no rank could be entered"),
    "eval": ("every rank answered", "the expression failed in some ranks", "no rank could be asked"),
    "probe": ("a rank reached the line", "no rank reached it in time", "no logpoint could be set"),
    "snapshot": ("the file was written", "", "it was not"),
    "hosts": ("every host passed every check", "some hosts failed a check", "no host could be reached"),
    "demo": ("the job was explained", "", "it was not"),
}
ALWAYS = "2 also: wrong options. 130: ended by Ctrl-C. 141: whoever read the output has left."


def status_text(command: str) -> str:
    """``exit status: 0 …, 1 …, 2 …``"""
    told = [f"{status} {meaning}" for status, meaning in enumerate(MEANINGS[command]) if meaning]
    return f"exit status: {'; '.join(told)}"
