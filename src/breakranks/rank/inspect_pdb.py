"""pdb over a thread that is not stopped: every command that inspects, none that steps."""

from __future__ import annotations

import ast
import functools
import os
from types import FrameType
from typing import Any

from breakranks.rank import collective_guard, stuck_device, thread_location, value_summary
from breakranks.rank.evaluation_commands import AlreadyReported
from breakranks.rank.rank_pdb import RankPdb
from breakranks.rank.running_pdb import RunningPdb
from breakranks.rank.stop_state import LineRequest
from breakranks.rank_messages import ARMING

_STEPS = frozenset("n next s step r return c cont continue unt until j jump rv retval debug commands".split())


class InspectPdb(RankPdb):
    """Keeps the frame that up and down have selected, as long as the thread has not moved."""

    _at: tuple[FrameType, int] | None = None
    _note = ""  # the frame of a value, if it is not the selected one

    def look(self, frame: FrameType, line: str, request: LineRequest) -> tuple[str, bool, int, dict[str, Any] | None]:
        """Execute one command in a frame. Return its output, whether it failed, how much was cut, and the value."""
        if self._at != (frame, frame.f_lasti):
            self._at = (frame, frame.f_lasti)
            self.reset()
            self.setup(frame, None)
        self._failed, self._value = False, None
        self._captured.own(None)
        try:
            with stuck_device.not_waiting():
                self._do(line)
        finally:
            self.forget_names()
        text, cut = self._captured.take()
        return text, self._failed, cut, self._value

    def _do(self, line: str) -> None:
        word = self.parseline(line)[0] or ""
        if word in ARMING or (word in ("until", "unt") and ":" in line):
            text, self._failed = RunningPdb(self.agent).do(line)
            self.message(text.rstrip("\n"))
        elif word in _STEPS:
            self.error("the rank is not stopped, so it cannot be stepped; `interrupt` stops it at its next line")
        else:
            self.onecmd(line)

    def tidy(self, frame: FrameType | None) -> None:
        """Forget frames that the thread has left."""
        if self._at is not None and (frame is None or self._at != (frame, frame.f_lasti)):
            self._at = None
            self.forget()

    @property
    def _takers(self) -> frozenset[int]:
        return frozenset()  # the rank's own thread is elsewhere: no collective would match

    def do_p(self, arg: str) -> None:
        self._show(arg, lambda value: self._annotated(*value_summary.bounded(value)))

    def _getval(self, arg: str) -> Any:
        """Evaluate in the innermost frame that knows all names, and note which frame that is.

        Only what the expression prints itself is captured: standard output belongs to the job, whose threads run.
        """
        self._note = ""
        try:
            tree = ast.parse(arg.strip(), mode="eval")
            frames = [frame for frame, _ in self.stack[: self.curindex + 1]][::-1]
            frame = thread_location.knowing(frames, tree)
        except (SyntaxError, ValueError, IndexError):
            return super()._getval(arg)
        refused = collective_guard.precheck(arg, frame.f_globals, frame.f_locals, self._takers)
        if refused:
            self.error(self.refusal(refused))
            raise AlreadyReported
        if frame is not self.curframe:
            code = frame.f_code
            self._note = f"  # in {code.co_name}, {os.path.basename(code.co_filename)}:{frame.f_lineno}"
        # One scope, so that a comprehension sees the locals.
        scope = {"print": functools.partial(print, file=self._captured), **frame.f_globals, **frame.f_locals}
        try:
            with collective_guard.guarding(
                self._takers, modules=any(isinstance(node, ast.Call) for node in ast.walk(tree))
            ):
                return eval(compile(tree, "<breakranks>", "eval"), scope)
        except BaseException:
            self._error_exc()
            raise

    def _annotated(self, text: str, cut: int) -> tuple[str, int]:
        return text + self._note, cut

    def refusal(self, error: collective_guard.CollectiveRefused) -> str:
        return f"refused: {error.collective} is a collective, and this rank is not stopped; `interrupt` it first"

    def onecmd(self, line: str) -> Any:
        try:
            return super(RankPdb, self).onecmd(line)
        except KeyboardInterrupt:
            self.error("interrupted")
            return None

    def default(self, line: str) -> None:
        source = line.removeprefix("!").strip()
        if self._refused(source):
            return
        try:
            ast.parse(source, mode="eval")
        except SyntaxError:
            self._execute(source)
        else:
            self.do_p(source)

    def _execute(self, source: str) -> None:
        assert self.curframe is not None
        try:
            with collective_guard.guarding(self._takers):
                exec(compile(source + "\n", "<stdin>", "single"), self.curframe.f_globals, self.curframe_locals)
            self._keep_locals()
        except BaseException:
            self._error_exc()
