"""pdb's commands for breakpoints in a rank that runs, without stopping it."""

from __future__ import annotations

from types import FrameType
from typing import TYPE_CHECKING, Any

from breakranks.rank import thread_location, thread_states
from breakranks.rank.rank_pdb import RankPdb
from breakranks.rank_messages import ARMING

if TYPE_CHECKING:
    from breakranks.rank.agent import RankAgent

_COMMANDS = ARMING | {"until", "unt"}


class RunningPdb(RankPdb):
    """Names are resolved in the inspected thread, at its current line."""

    loaded_only = True

    def __init__(self, agent: RankAgent, thread: int = 0) -> None:
        super().__init__(agent)
        self._thread = thread or thread_states.main()
        self._frames: list[FrameType] = []

    def do(self, line: str) -> tuple[str, bool]:
        """Execute one command. Return pdb's output, and whether it failed."""
        word = self.parseline(line)[0] or ""
        if word not in _COMMANDS:
            return f"{word} needs a stopped rank\n", True
        self.reset()
        stack = thread_states.stack_of(self._thread)
        self._frames = [frame for frame in stack if not thread_states.of_ours(frame)]
        if not self._frames:
            return "that thread has ended, or is not in Python\n", True
        # A line without a file is in the user's own code, even if the thread is in a library now.
        own = (frame for frame in self._frames if not thread_location.is_foreign(frame.f_code.co_filename))
        self.setup(next(own, self._frames[0]), None)
        try:
            super(RankPdb, self).onecmd(line)
            self.arm()
            self.agent.breakpoints.tell()
        except Exception as error:
            self.error(f"{type(error).__name__}: {error}")
        finally:
            self.forget()
            self._frames = []
        text, _ = self._captured.take()
        return text, self._failed

    @property
    def innermost(self) -> FrameType | None:
        return self._frames[0] if self._frames else None

    @property
    def watchable(self) -> list[FrameType]:
        return self._frames

    @property
    def watched_thread(self) -> int:
        return self._thread

    def do_until(self, arg: str) -> Any:
        """until FILE:LINE: the same as `tbreak FILE:LINE`."""
        return self.do_tbreak(arg)

    do_unt = do_until

    def arm(self) -> None:
        super().arm()
        foreign = getattr(self.agent.breakpoints.way, "foreign", ())
        if foreign:
            self.message(f"it does not apply to {', '.join(foreign)}: traced by another debugger, or by coverage")
