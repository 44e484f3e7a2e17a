"""pdb's commands for breakpoints, done for a rank that runs: nothing is stopped for it."""

from __future__ import annotations

from types import FrameType
from typing import TYPE_CHECKING, Any

from breakranks.rank import thread_location, thread_states
from breakranks.rank.rank_pdb import RankPdb

if TYPE_CHECKING:
    from breakranks.rank.agent import RankAgent

_WORDS = frozenset("""b break tbreak cl clear condition ignore enable disable until unt watch unwatch catch""".split())


class RunningPdb(RankPdb):
    """Names mean what they mean to the thread that is looked at, where it is just now."""

    loaded_only = True

    def __init__(self, agent: RankAgent, thread: int = 0) -> None:
        super().__init__(agent)
        self._thread = thread or thread_states.main()
        self._frames: list[FrameType] = []

    def do(self, line: str) -> tuple[str, bool]:
        """One line; what pdb says, and whether it failed."""
        word = self.parseline(line)[0] or ""
        if word not in _WORDS:
            return f"{word} is not for a rank that runs\n", True
        self.reset()
        self._frames = [one for one in thread_states.stack_of(self._thread) if not thread_states.of_ours(one)]
        if not self._frames:
            return "that thread has ended, or is not in Python\n", True
        # A line without a file is one of the user's own code, wherever in a library the thread is.
        self.setup(
            next(
                (one for one in self._frames if not thread_location._foreign(one.f_code.co_filename)), self._frames[0]
            ),
            None,
        )
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
        """until FILE:LINE: a breakpoint that is gone when it was come to."""
        return self.do_tbreak(arg)

    do_unt = do_until

    def arm(self) -> None:
        super().arm()
        foreign = getattr(self.agent.breakpoints.way, "foreign", ())
        if foreign:
            self.message(f"not in {', '.join(foreign)}: another debugger, or coverage, traces there")
