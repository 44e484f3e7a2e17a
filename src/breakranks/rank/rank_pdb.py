"""pdb for a rank: its lines come from a console, its output goes there, and it stops where it is called.

Everything that pdb does is pdb's own. What is different: a rank that is stopped says so to the others, an expression
that would start a collective on part of its group is refused, and leaving never ends the job.
"""

from __future__ import annotations

import io
import pdb  # noqa: T100
import pprint
import reprlib
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from breakranks.rank import collective_guard, fsdp, thread_location, value_summary
from breakranks.rank.breakpoint_commands import BreakpointCommands
from breakranks.rank.breakpoint_table import is_ours
from breakranks.rank.captured_output import CapturedOutput
from breakranks.rank.stop_state import GONE, StopInfo, StopInterrupted, StopReleased
from breakranks.rankset import RankSet

if TYPE_CHECKING:
    from breakranks.rank.agent import RankAgent

_MAX_LOCALS = 500
_LATE_SECONDS = 1.0  # seconds within which an interrupt of ours has arrived
_OURS = "breakranks.rank.*"
_MINDSPORE = "MindSpore's collectives keep their own timeouts (30 s and more): step over one on all ranks, `all n`"


class ConsoleLines:
    """Where pdb reads: to ask for the next line is to be done with the last."""

    def __init__(self, debugger: RankPdb) -> None:
        self._debugger = debugger

    def readline(self) -> str:
        return self._debugger.next_line()


class RankPdb(BreakpointCommands, pdb.Pdb):
    """One a thread; their breakpoints are one table. ``going``: the last word was to continue, and not to step."""

    going = False
    stepping = has_stepped = False  # its trace function is the thread's, or was
    _generation = 0  # of what is armed, when this thread left the prompt

    def __init__(self, agent: RankAgent) -> None:
        self._captured = CapturedOutput()
        self._named: list[dict[str, Any]] = []  # modules in which pdb has put variables of its own
        super().__init__(
            stdin=ConsoleLines(self),  # type: ignore[arg-type]
            stdout=self._captured,  # type: ignore[arg-type]
            skip=[_OURS],
            nosigint=True,
            readrc=False,
        )
        self.prompt = ""
        self.use_rawinput = False
        self.agent = agent
        self.share()
        self.tracer = self.trace_dispatch  # always the same one, so that it can be told from others
        self.lost = False  # the console has gone while the rank was stepped: stop tracing at the next event
        self.displaced: Any = None  # somebody else's trace function, until this thread runs on
        self._next: StopInfo | None = None  # what the next interaction is about, where we know better than pdb
        self._value: dict[str, Any] | None = None
        self._failed = False
        self._fresh = False
        self._streams: tuple[Any, Any] | None = None  # the job's input and output, while something is evaluated

    # ---- stopping

    def stop_at(self, frame: FrameType, stop: StopInfo, number: int = 0) -> None:
        """Stop in this very line, at a breakpoint if that has a number. Unless it is ``going`` after it, the caller
        calls trace_from last."""
        tracer = sys.gettrace()
        sys.settrace(None)  # else all would be traced that we do
        self.displaced = tracer if not is_ours(tracer) else self.displaced
        self.reset()
        self.botframe = _outermost(frame)
        self._next = stop
        if number:
            self.currentbp = number
            self.user_line(frame)
        else:
            self.interaction(frame, None)
        self._next = None
        if self.going:
            self._go_on(frame)

    def post_mortem(self, trace: TracebackType, stop: StopInfo) -> None:
        self.reset()
        self._next = stop
        self.interaction(None, trace)
        self.agent.loose()  # whatever it was told: there is nothing left to step

    def trace_from(self, frame: FrameType | None) -> None:
        """The last thing that happens before the job's own code runs: any call of ours after it would be traced too."""
        known = self.agent.breakpoints
        with known.lock:
            if self.going or self._generation != known.generation:
                self._go_on(frame)
                return
            self.stepping = self.has_stepped = True
            while frame is not None:
                frame.f_trace = self.tracer
                frame = frame.f_back
            sys.settrace(self.tracer)

    def steps(self) -> bool:
        """Whether it steps the thread that asks; one that has ended meanwhile may have had the same number."""
        return self.stepping and sys.gettrace() is self.tracer

    def _go_on(self, frame: FrameType | None) -> Any:
        """Not stepped any more; what is armed is come to in another way."""
        self.stepping = False
        self.forget_names()
        displaced, self.displaced = self.displaced, None
        return self.agent.breakpoints.go_on(frame, displaced)

    def set_continue(self) -> None:
        self._set_stopinfo(self.botframe, None, -1)
        self.going = True

    def _set_stopinfo(self, *arguments: Any, **named: Any) -> None:
        self.going = False
        super()._set_stopinfo(*arguments, **named)  # type: ignore[misc]

    def break_in(self, frame: FrameType, stop: StopInfo) -> None:
        """Stop at the next line that this thread comes to."""
        self.reset()
        self.botframe = _outermost(frame)
        self._next = stop
        self.set_step()
        self._generation = self.agent.breakpoints.generation
        self.trace_from(frame)

    def trace_dispatch(self, frame: FrameType, event: str, arg: Any) -> Any:
        if not self.agent.here:
            return self._abandon(frame)
        if self.lost or self._generation != self.agent.breakpoints.generation:  # everything was taken off meanwhile
            self.lost = False
            self.set_continue()
            return self._go_on(frame)
        self.agent.breakpoints.passing(frame, event, arg)
        try:
            found = super().trace_dispatch(frame, event, arg)
        except Exception:  # pdb's or ours, and none of the job's
            self.let_loose(frame)
            return None
        if self.going:
            return self._go_on(frame)
        if self.steps():
            return found
        self.trace_from(frame)  # it was at a prompt, and is stepped on
        return frame.f_trace

    def _abandon(self, frame: FrameType | None) -> None:
        """In a forked child: it goes on, and is not traced."""
        self.agent.forked()  # has settled what there was of its parent's
        self.stepping, self.going, self._next = False, True, None
        displaced, self.displaced = self.displaced, None
        self.agent.breakpoints.abandon(frame, displaced)

    def let_loose(self, frame: FrameType | None) -> None:
        """As if nobody had ever traced this thread."""
        self.lost = False
        self.set_continue()
        self.agent.breakpoints.disarm()
        self._go_on(frame)
        self.agent.loose()

    def set_convenience_variable(self, frame: FrameType, name: str, value: Any) -> None:
        super().set_convenience_variable(frame, name, value)  # type: ignore[misc]
        if not any(one is frame.f_globals for one in self._named):
            self._named.append(frame.f_globals)

    def forget_names(self) -> None:
        """What pdb has put into the job's modules, from 3.12 on: it would hold on to frames."""
        while self._named:
            self._named.pop().pop("__pdb_convenience_variables", None)

    @property
    def stop_state(self) -> Any:
        return self.agent.stop_state

    def interaction(self, frame: FrameType | None, traceback: Any) -> None:
        if self.agent.watch.off and not self.agent.watched and self._next is None:
            self.let_loose(frame)
            return
        shown = _innermost(traceback) if frame is None and isinstance(traceback, TracebackType) else frame
        if isinstance(traceback, BaseException) and frame is None:
            shown = _innermost(traceback.__traceback__)
        self._sit(shown, lambda: super(RankPdb, self).interaction(frame, traceback))

    def _cmdloop(self) -> None:
        if self.stop_state.sits():
            super()._cmdloop()
        else:  # before 3.13 pdb comes here on its own, after the `commands` of a breakpoint
            self._sit(self.curframe, super()._cmdloop)

    def bp_commands(self, frame: FrameType) -> Any:
        wanted = super().bp_commands(frame)
        if not wanted:
            text, _ = self._captured.take()
            if text:
                self.agent.server.tell({"event": "said", "text": text})
        return wanted

    def _sit(self, shown: FrameType | None, body: Callable[[], None]) -> None:
        """Be stopped, as the others and the consoles see it, for as long as ``body`` asks for lines."""
        if not self.agent.here:
            self._abandon(shown)
            return
        stop, self._next = self._next or self._stepped(), None
        self.lost = self.stepping = False
        self.agent.breakpoints.halted_here()
        stop.thread = threading.current_thread().name
        stop.where = thread_location.place(shown)
        stop.inside = fsdp.inside_of(shown) if shown is not None else None
        self._fresh = True
        ended = False
        try:
            self.agent.enter(stop)  # before the timeouts: the agent puts back what nobody needs
            stop.notes = self.agent.timeouts.extend()
            if "mindspore" in sys.modules:
                stop.notes.append(_MINDSPORE)
            body()
        except StopReleased as released:
            self.forget()
            if released.args[0] == GONE:
                self.clear_all_breaks()
            self.set_continue()
        except StopInterrupted:
            self.forget()
            self.clear_all_breaks()
            self.set_continue()
            ended = True
        finally:
            self._generation = self.agent.breakpoints.generation
            tracing = not self._leaves()
            asked = self._take_request() if self.going else None  # before another thread may sit down, with its own
            self.agent.leave(tracing=tracing)
            if not self.agent.serves():
                self.agent.timeouts.restore()  # nobody else would
            if self.going:  # a step is answered when it has come to its end, a `c` at once
                self._tell(asked, went=True)
        if ended:
            raise KeyboardInterrupt

    def _stepped(self) -> StopInfo:
        return StopInfo(site="", count=0, role="prompt", stoppers=RankSet([self.agent.me.rank]), reason="step")

    def _leaves(self) -> bool:
        """Whether pdb was told to continue and has nothing to stop at."""
        return self.going and not self.agent.breakpoints.stops

    # ---- lines in, answers out

    def next_line(self) -> str:
        self._answer()
        while True:
            try:
                request = self.stop_state.next()
            except KeyboardInterrupt:
                if time.monotonic() - self.stop_state.told_to_end < _LATE_SECONDS:
                    continue  # meant for what was evaluated
                raise StopInterrupted from None
            return str(request.line) + "\n"

    def _answer(self) -> None:
        self._tell(self._take_request(), went=False)

    def _take_request(self) -> Any:
        self.stop_state.done()
        request, self.stop_state.request = self.stop_state.request, None
        return request

    def _tell(self, request: Any, *, went: bool) -> None:
        text, cut = self._captured.take()
        fresh, self._fresh = self._fresh, False
        if request is not None:
            answer = {
                "event": "answer",
                "id": request.number,
                "text": text,
                "cut": cut,
                "value": self._value,
                "error": self._failed,
                "went": went,
                "state": self.agent.state(),
            }
            self.agent.server.tell(answer, request.client)
        self._value, self._failed = None, False
        if fresh:
            self.agent.server.tell({"event": "state", "text": text if request is None else "", **self.agent.state()})

    def onecmd(self, line: str) -> Any:
        self._captured.own(sys.stdout)
        outer, mine = self._streams, (sys.stdin, sys.stdout)
        self._streams = outer or mine
        # What asks a question here would ask the job's own terminal, and nobody sees it there.
        sys.stdin, sys.stdout = io.StringIO(), self._captured
        try:
            return super().onecmd(line)
        except KeyboardInterrupt:
            self.stop_state.signalled = False  # it has arrived
            self.error("interrupted")
            return None
        finally:
            self._return(mine)
            self._streams = outer
            self.arm()

    def _return(self, streams: tuple[Any, Any]) -> None:
        sys.stdin = streams[0]
        if sys.stdout is self._captured:  # else the command has set it to something of its own
            sys.stdout = streams[1]

    def return_streams(self) -> None:
        """In a forked child: the job has its own input and output again."""
        if self._streams is not None:
            self._return(self._streams)

    def error(self, msg: str) -> None:
        self._failed = True
        super().error(msg)

    def _error_exc(self) -> None:
        error = sys.exc_info()[1]
        if isinstance(error, KeyboardInterrupt):
            self.stop_state.signalled = False  # it has arrived
        if isinstance(error, collective_guard.CollectiveRefused):
            self.error(self.refusal(str(error)))
        else:
            self._failed = True
            super()._error_exc()  # type: ignore[misc]

    # ---- evaluating

    @property
    def _takers(self) -> frozenset[int]:
        request = self.stop_state.request
        return request.takers if request is not None else frozenset([self.agent.me.rank])

    def refusal(self, text: str) -> str:
        """How it is said that something would start a collective on part of its group."""
        return f"refused: {text}. To do it on all of them: all p …"

    def _refused(self, source: str) -> bool:
        if self.curframe is None:
            return False
        found = collective_guard.precheck(source, self.curframe.f_globals, self.curframe_locals, self._takers)
        if found:
            self.error(self.refusal(found))
        return bool(found)

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
        """Before 3.13 what is assigned to a local is lost unless a trace function returns next; here none may."""
        if sys.version_info < (3, 13) and self.curframe is not None:
            import ctypes

            ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(self.curframe), ctypes.c_int(1))

    def do_p(self, arg: str) -> None:
        self._show(arg, value_summary.bounded)

    def do_pp(self, arg: str) -> None:
        self._show(arg, lambda value: (pprint.pformat(value), 0))

    def do_locals(self, arg: str) -> None:
        """locals: the names of this frame and what they are, each in short."""
        if arg:  # a variable of that name: locals = 3
            self.default(f"locals {arg}")
            return
        with collective_guard.guarding(self._takers):
            for name, value in list(dict(self.curframe_locals).items())[:_MAX_LOCALS]:
                self.message(f"{name} = {_short(value)}")

    def _show(self, arg: str, text_of: Callable[[Any], tuple[str, int]]) -> None:
        try:
            value = self._getval(arg)
        except BaseException:
            return  # pdb has said what went wrong; sys.exit() ends nothing here
        self._value = value_summary.describe(value)
        try:
            with collective_guard.guarding(self._takers):  # a repr may do anything
                text, cut = text_of(value)
        except collective_guard.CollectiveRefused as refused:
            self.error(self.refusal(str(refused)))
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                self.stop_state.signalled = False  # it has arrived
            self.error(f"{type(error).__name__} in its repr: {error}"[:2000])
        else:
            self.message(text)
            self._captured.skip(cut)

    def do_quit(self, arg: str) -> bool:
        """q(uit): leave the job running; the console does that. Here it is a `continue`."""
        self.set_continue()
        return True

    do_q = do_exit = do_EOF = do_quit

    def do_run(self, arg: str) -> None:
        """run: a rank cannot be started again from here."""
        self.error("a rank cannot be started again from its prompt: start the job again")

    do_restart = do_run

    def do_interact(self, arg: str) -> None:
        """interact: not over many ranks; `!STATEMENT` and `p EXPRESSION` do the same a line at a time."""
        self.error("interact wants a terminal of its own; use !STATEMENT and p EXPRESSION")


class AlreadyReported(Exception):
    """What was wrong has been said."""


def _short(value: Any) -> str:
    try:
        return reprlib.repr(value)
    except BaseException as error:  # a repr may do anything
        return f"<{type(value).__name__}: {type(error).__name__} in its repr>"


def _outermost(frame: FrameType) -> FrameType:
    while frame.f_back is not None:
        frame = frame.f_back
    return frame


def _innermost(trace: TracebackType | None) -> FrameType | None:
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace.tb_frame if trace is not None else None
