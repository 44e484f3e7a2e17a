"""debugger-prompt: a person is awaited."""

from __future__ import annotations

from breakranks.explain import words
from breakranks.explain.case import Case
from breakranks.explain.look import Look
from breakranks.explain.model import CERTAIN
from breakranks.explain.rules.reason import AT_ONCE, Reason


def reason(case: Case, one: Look) -> Reason | None:
    if one.activity.word not in ("prompt", "held"):
        return None
    if one.activity.op == "breakranks":
        return _ours(one)
    terminal = next((file.path for file in one.process.files if file.fd == 0), "")
    evidence = [f"its stack is inside {one.activity.op}"]
    if terminal:
        evidence.append(f"its standard input is {terminal}")
    return Reason(
        "debugger-prompt",
        f"waits for a person at a prompt ({one.activity.op}), in {words.place(one.where)}",
        tuple(evidence),
        (f"answer at {terminal} (c continues)" if terminal.startswith("/dev/") and "null" not in terminal
         else f"kill -INT {one.process.pid}  # its prompt has no terminal",),
        CERTAIN,
        AT_ONCE,
        one.where,
        "its stack shows the prompt",
    )  # fmt: skip


def _ours(one: Look) -> Reason:
    held = one.activity.word == "held"
    what = "is held at a breakpoint, and nobody is at a prompt" if held else "waits for a person at breakranks' prompt"
    return Reason(
        "debugger-prompt",
        f"{what}, in {words.place(one.where)}",
        ("its stack is in breakranks.breakpoint()",),
        ("breakranks console", "breakranks console -c go  # lets all ranks run on"),
        CERTAIN,
        AT_ONCE,
        one.where,
        "its stack shows it",
    )
