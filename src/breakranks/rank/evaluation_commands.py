"""pdb's commands that evaluate code in a stopped rank. A collective on part of its group is refused."""

from __future__ import annotations

import ctypes
import pdb  # noqa: T100
import pprint
import sys
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

from breakranks.rank import collective_guard, value_summary
from breakranks.rank.captured_output import CapturedOutput
from breakranks.rank.watchpoints import short

if TYPE_CHECKING:
    _Pdb = pdb.Pdb
else:
    _Pdb = object

_MAX_LOCALS = 500


class EvaluationCommands(_Pdb):
    """A mixin before ``pdb.Pdb``. ``_value`` is the summary of the last value shown, ``_failed`` whether it failed."""

    agent: Any
    _captured: CapturedOutput
    _value: dict[str, Any] | None
    _failed: bool

    def error(self, msg: str) -> None:
        self._failed = True
        super().error(msg)

    def _error_exc(self) -> None:
        error = sys.exc_info()[1]
        if isinstance(error, KeyboardInterrupt):
            self.agent.stop_state.signalled = False  # the interrupt has arrived
        if isinstance(error, collective_guard.CollectiveRefused):
            self.error(self.refusal(error))
        else:
            self._failed = True
            super()._error_exc()  # type: ignore[misc]

    # ---- collectives

    @property
    def _takers(self) -> frozenset[int]:
        """The ranks that evaluate the same code, and so take part in a collective."""
        request = self.agent.stop_state.request
        return request.takers if request is not None else frozenset([self.agent.me.rank])

    def refusal(self, error: collective_guard.CollectiveRefused) -> str:
        """Return the message for code that would start a collective on part of its group."""
        return f"refused: {error}. To run it on all of them: all p …"

    def _refused(self, source: str) -> bool:
        if self.curframe is None:
            return False
        reason = collective_guard.precheck(source, self.curframe.f_globals, self.curframe_locals, self._takers)
        if reason:
            self.error(self.refusal(reason))
        return bool(reason)

    # ---- evaluating

    def _getval(self, arg: str) -> Any:
        if self._refused(arg):
            raise AlreadyReported
        with collective_guard.guarding(self._takers):
            return super()._getval(arg)

    def _getval_except(self, arg: str, frame: FrameType | None = None) -> Any:
        with collective_guard.guarding(self._takers):
            return super()._getval_except(arg, frame)

    def default(self, line: str) -> None:
        if not self._refused(line.removeprefix("!").strip()):
            with collective_guard.guarding(self._takers):
                super().default(line)
            self._keep_locals()

    def _keep_locals(self) -> None:
        """Before 3.13 a local that was assigned is lost unless a trace function returns next, which none does here."""
        if sys.version_info < (3, 13) and self.curframe is not None:
            ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(self.curframe), ctypes.c_int(1))

    def do_p(self, arg: str) -> None:
        """p EXPRESSION

        Print the value of EXPRESSION.
        """
        self._show(arg, value_summary.bounded)

    def do_pp(self, arg: str) -> None:
        """pp EXPRESSION

        Pretty-print the value of EXPRESSION.
        """
        self._show(arg, lambda value: (pprint.pformat(value), 0))

    def do_locals(self, arg: str) -> None:
        """locals

        Print the local variables of this frame, each shortened.
        """
        if arg:  # a variable of that name: locals = 3
            self.default(f"locals {arg}")
            return
        with collective_guard.guarding(self._takers):
            for name, value in list(dict(self.curframe_locals).items())[:_MAX_LOCALS]:
                self.message(f"{name} = {short(value)}")

    def _show(self, arg: str, text_of: Callable[[Any], tuple[str, int]]) -> None:
        try:
            value = self._getval(arg)
        except BaseException:
            return  # pdb has printed the error; sys.exit() does not end the job here
        self._value = value_summary.describe(value)
        try:
            with collective_guard.guarding(self._takers):  # a repr may run anything
                text, cut = text_of(value)
        except collective_guard.CollectiveRefused as refused:
            self.error(self.refusal(refused))
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                self.agent.stop_state.signalled = False  # the interrupt has arrived
            self.error(f"repr() raised {type(error).__name__}: {error}"[:2000])
        else:
            self.message(text)
            self._captured.skip(cut)

    # ---- commands of pdb that do not fit a rank

    def do_quit(self, arg: str) -> bool:
        """q(uit)

        Continue the rank: it is the console that leaves the job. The job is not ended.
        """
        self.set_continue()
        return True

    do_q = do_exit = do_EOF = do_quit

    def do_run(self, arg: str) -> None:
        """run

        Not supported: a rank cannot be restarted from its prompt.
        """
        self.error("a rank cannot be restarted from its prompt; restart the job")

    do_restart = do_run

    def do_interact(self, arg: str) -> None:
        """interact

        Not supported: use `!STATEMENT` and `p EXPRESSION`.
        """
        self.error("interact needs a terminal of its own; use !STATEMENT and p EXPRESSION")


class AlreadyReported(Exception):
    """The error has been printed."""
