"""pdb for a rank: a console sends its commands and gets its output.

The behaviour is pdb's, with three differences: a stopped rank tells the other ranks, an expression that would start a
collective on part of its group is refused, and quitting never ends the job.
"""

from __future__ import annotations

import io
import pdb  # noqa: T100
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from breakranks.rank import fsdp, thread_location
from breakranks.rank.breakpoint_commands import BreakpointCommands
from breakranks.rank.breakpoint_table import is_ours
from breakranks.rank.captured_output import CapturedOutput
from breakranks.rank.evaluation_commands import EvaluationCommands
from breakranks.rank.stop_state import GONE, StopInfo, StopInterrupted, StopReleased
from breakranks.rank_messages import AnswerEvent, SaidEvent, StateEvent
from breakranks.rankset import RankSet

if TYPE_CHECKING:
    from breakranks.rank.agent import RankAgent

_LATE_SECONDS = 1.0  # within which an interrupt that breakranks sent has arrived
_SKIPPED_MODULES = "breakranks.rank.*"
_MINDSPORE = "MindSpore's collectives keep their own timeouts (30 s or more): step over them on all ranks, `all n`"


class ConsoleLines:
    """The standard input of pdb. When pdb reads the next line, the last command is done."""

    def __init__(self, debugger: RankPdb) -> None:
        self._debugger = debugger

    def readline(self) -> str:
        return self._debugger.next_line()


class RankPdb(BreakpointCommands, EvaluationCommands, pdb.Pdb):
    """The pdb of one thread; all threads share one table of breakpoints. ``going``: continue, rather than step."""

    going = False
    stepping = has_stepped = False  # its trace function is that of the thread, or was
    _generation = 0  # of the breakpoints, when this thread left the prompt

    def __init__(self, agent: RankAgent) -> None:
        self._captured = CapturedOutput()
        self._named: list[dict[str, Any]] = []  # the globals in which pdb has set its convenience variables
        super().__init__(
            stdin=ConsoleLines(self),  # type: ignore[arg-type]
            stdout=self._captured,  # type: ignore[arg-type]
            skip=[_SKIPPED_MODULES],
            nosigint=True,
            readrc=False,
        )
        self.prompt = ""
        self.use_rawinput = False
        self.agent = agent
        self.share()
        self.tracer = self.trace_dispatch  # one object for all time: its id tells it from other trace functions
        self.lost = False  # disarmed while stepping: stop tracing at the next event
        self.displaced: Any = None  # the trace function of another tool, until this thread resumes
        self._next: StopInfo | None = None  # why the next interaction happens, if pdb does not know
        self._value: dict[str, Any] | None = None
        self._failed = False
        self._fresh = False
        self._streams: tuple[Any, Any] | None = None  # the job's input and output, while a command runs

    # ---- stopping

    def stop_at(self, frame: FrameType, stop: StopInfo, number: int = 0) -> None:
        """Stop at this line, at the breakpoint ``number`` if there is one.

        If it is not ``going`` afterwards, the caller calls ``trace_from``, as its last call.
        """
        tracer = sys.gettrace()
        sys.settrace(None)  # else the code of breakranks would be traced
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
        self.agent.loose()  # even after a step command: nothing is left to step

    def trace_from(self, frame: FrameType | None) -> None:
        """Trace from this frame on. The last call before the job's code runs: any later one would be traced."""
        armed = self.agent.breakpoints
        with armed.lock:
            if self.going or self._generation != armed.generation:
                self._go_on(frame)
                return
            self.stepping = self.has_stepped = True
            while frame is not None:
                frame.f_trace = self.tracer
                frame = frame.f_back
            sys.settrace(self.tracer)

    def steps(self) -> bool:
        """Whether it steps the calling thread. (A thread that has ended may have had the same ident.)"""
        return self.stepping and sys.gettrace() is self.tracer

    def _go_on(self, frame: FrameType | None) -> Any:
        """Stop tracing: from here on the backend of the breakpoints reports events."""
        self.stepping = False
        self.forget_names()
        self.release_frames()
        displaced, self.displaced = self.displaced, None
        return self.agent.breakpoints.go_on(frame, displaced)

    def set_continue(self) -> None:
        self._set_stopinfo(self.botframe, None, -1)
        self.going = True

    def _set_stopinfo(self, *arguments: Any, **named: Any) -> None:
        self.going = False
        super()._set_stopinfo(*arguments, **named)  # type: ignore[misc]

    def break_in(self, frame: FrameType, stop: StopInfo) -> None:
        """Stop at the next line of this thread."""
        self.reset()
        self.botframe = _outermost(frame)
        self._next = stop
        self.set_step()
        self._generation = self.agent.breakpoints.generation
        self.trace_from(frame)

    def trace_dispatch(self, frame: FrameType, event: str, arg: Any) -> Any:
        if not self.agent.here:
            return self._abandon(frame)
        if self.lost or self._generation != self.agent.breakpoints.generation:  # everything was disarmed
            self.lost = False
            self.set_continue()
            return self._go_on(frame)
        self.agent.breakpoints.passing(frame, event, arg)
        try:
            tracer = super().trace_dispatch(frame, event, arg)
        except Exception:  # an error of pdb or breakranks must not be raised into the job
            self.let_loose(frame)
            return None
        if self.going:
            return self._go_on(frame)
        if self.steps():
            return tracer
        self.trace_from(frame)  # it was at a prompt and continues to step
        return frame.f_trace

    def _abandon(self, frame: FrameType | None) -> None:
        """In a forked child: continue without tracing."""
        self.agent.forked()  # drops the state of the parent
        self.stepping, self.going, self._next = False, True, None
        displaced, self.displaced = self.displaced, None
        self.agent.breakpoints.abandon(frame, displaced)

    def let_loose(self, frame: FrameType | None) -> None:
        """Disarm everything and continue without tracing."""
        self.lost = False
        self.set_continue()
        self.agent.breakpoints.disarm()
        self._go_on(frame)
        self.agent.loose()

    def forget(self) -> None:
        super().forget()
        self.__dict__.pop("curframe_locals", None)  # the values of the job's variables

    def release_frames(self) -> None:
        """Release the job's frames, and with them its tensors. The outermost frame stays: it tells where to stop."""
        self.forget()
        self.release_step()
        if sys.version_info >= (3, 13):
            self.enterframe = None

    def release_step(self) -> None:
        """Release the frames in which a step began and was to end."""
        self.stopframe, self.returnframe = getattr(self, "botframe", None), None
        if hasattr(self, "cmdframe"):  # later versions
            self.cmdframe = None

    def set_convenience_variable(self, frame: FrameType, name: str, value: Any) -> None:
        super().set_convenience_variable(frame, name, value)  # type: ignore[misc]
        if not any(scope is frame.f_globals for scope in self._named):
            self._named.append(frame.f_globals)

    def forget_names(self) -> None:
        """Remove what pdb sets in the job's modules, from 3.12 on: it would keep frames alive."""
        while self._named:
            self._named.pop().pop("__pdb_convenience_variables", None)

    @property
    def stop_state(self) -> Any:
        return self.agent.stop_state

    def interaction(self, frame: FrameType | None, traceback: Any) -> None:
        if self.agent.coordination.off and not self.agent.watched and self._next is None:
            self.let_loose(frame)
            return
        shown = _innermost(traceback) if frame is None and isinstance(traceback, TracebackType) else frame
        if isinstance(traceback, BaseException) and frame is None:
            shown = _innermost(traceback.__traceback__)
        self._stay_stopped(shown, lambda: super(RankPdb, self).interaction(frame, traceback))

    def _cmdloop(self) -> None:
        if self.stop_state.sits():
            super()._cmdloop()
        else:  # before 3.13 pdb calls this itself, after the `commands` of a breakpoint
            self._stay_stopped(self.curframe, super()._cmdloop)

    def bp_commands(self, frame: FrameType) -> Any:
        wanted = super().bp_commands(frame)
        if not wanted:
            text, _ = self._captured.take()
            if text:
                self.agent.server.tell(SaidEvent(text=text))
        return wanted

    def _stay_stopped(self, shown: FrameType | None, body: Callable[[], None]) -> None:
        """Be stopped, as other ranks and consoles see it, while ``body`` reads commands."""
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
            self.agent.enter(stop)  # before the timeouts: the agent restores timeouts that nothing needs
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
            request = self._take_request() if self.going else None  # before another thread may stop
            self.agent.leave(tracing=tracing)
            if not self.agent.serves():
                self.agent.timeouts.restore()  # the agent, which would do it, has ended
            if self.going:  # a step is answered when it has ended, a `c` at once
                self._tell(request, went=True)
        if ended:
            raise KeyboardInterrupt

    def _stepped(self) -> StopInfo:
        return StopInfo(site="", count=0, role="prompt", stoppers=RankSet([self.agent.me.rank]), reason="step")

    def _leaves(self) -> bool:
        """Whether the rank continues and nothing is armed that could stop it."""
        return self.going and not self.agent.breakpoints.stops

    # ---- commands and answers

    def next_line(self) -> str:
        self._answer()
        while True:
            try:
                request = self.stop_state.next()
            except KeyboardInterrupt:
                if time.monotonic() - self.stop_state.told_to_end < _LATE_SECONDS:
                    continue  # it was meant for the last evaluation
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
            answer = AnswerEvent(
                id=request.number,
                text=text,
                cut=cut,
                value=self._value,
                error=self._failed,
                went=went,
                state=self.agent.state(),
            )
            self.agent.server.tell(answer, request.client)
        self._value, self._failed = None, False
        if fresh:
            self.agent.server.tell(self.agent.report(StateEvent, text=text if request is None else ""))

    def onecmd(self, line: str) -> Any:
        self._captured.own(sys.stdout)
        outer, mine = self._streams, (sys.stdin, sys.stdout)
        self._streams = outer or mine
        # input() would read from the job's own terminal, where the user of the console is not.
        sys.stdin, sys.stdout = io.StringIO(), self._captured
        try:
            return super().onecmd(line)
        except KeyboardInterrupt:
            self.stop_state.signalled = False  # the interrupt has arrived
            self.error("interrupted")
            return None
        finally:
            self._return(mine)
            self._streams = outer
            self.arm()

    def _return(self, streams: tuple[Any, Any]) -> None:
        sys.stdin = streams[0]
        if sys.stdout is self._captured:  # else the command has replaced it
            sys.stdout = streams[1]

    def return_streams(self) -> None:
        """In a forked child: restore the input and output of the job."""
        if self._streams is not None:
            self._return(self._streams)


def _outermost(frame: FrameType) -> FrameType:
    while frame.f_back is not None:
        frame = frame.f_back
    return frame


def _innermost(trace: TracebackType | None) -> FrameType | None:
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace.tb_frame if trace is not None else None
