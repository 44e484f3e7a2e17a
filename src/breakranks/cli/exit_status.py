"""The exit status of every command: one table, for ``--help``, the docs and the code."""

from __future__ import annotations

OK, FOUND, FAILED = 0, 1, 2
# By command, the meaning of these.
MEANINGS = {
    "why": ("no verdict", "a verdict was found", "the job could not be inspected"),
    "collectives": (
        "no rank waits for another",
        "ranks wait, or their calls differ",
        "no flight recorder could be read",
    ),
    "ps": (
        "jobs were found, or the target is slurm: and no job is running",
        "",
        "no job was found, or none could be inspected",
    ),
    "stacks": ("at least one stack was read", "", "no stack was read"),
    "top": ("no verdict", "a verdict was found", "the job could not be inspected"),
    "console": (
        "every rank answered",
        "a rank answered with an error, or did not answer",
        "no job was found, or no rank stopped in time",
    ),
    "attach": (
        "every rank answered",
        "a rank answered with an error, or did not answer",
        "no rank could be attached to",
    ),
    "eval": ("every rank answered", "the expression failed in at least one rank", "no rank could be queried"),
    "probe": ("a rank reached the line", "no rank reached it in time", "no logpoint could be set"),
    "logs": ("no failure was found", "a failure was found, or with --grep a line", "no log could be read"),
    "snapshot": ("the file was written", "", "the file was not written"),
    "hosts": ("every host passed every check", "at least one host failed a check", "no host could be reached"),
    "run": (
        "the command ended with 0; any other status is the command's own, 128 + N after signal N",
        "",
        "the command could not be started, or ended with 2",
    ),
    "watch": ("the job has ended", "a hang was reported", "no job was found, or it could not be inspected"),
    "demo": ("the job was explained", "", "the job was not explained"),
}
ALWAYS = "Any command: 2 also for wrong options, 130 after Ctrl-C, 141 if its output pipe is closed early."


def status_text(command: str) -> str:
    """Return the part of ``--help`` that lists the exit statuses of a command."""
    listed = [f"{status} {meaning}" for status, meaning in enumerate(MEANINGS[command]) if meaning]
    return f"exit status: {'; '.join(listed)}\n{ALWAYS}"
