"""pdb's commands for breakpoints, adapted to a rank, and three more: watch, unwatch, catch."""

from __future__ import annotations

import bdb
import inspect
import pdb  # noqa: T100
import re
import sys
from collections.abc import Iterator
from types import FrameType, FunctionType
from typing import TYPE_CHECKING, Any

from breakranks.rank import source_lines, thread_states
from breakranks.rank.breakpoint_table import BREAKS, SHARED, next_number
from breakranks.rank.watchpoints import Watchpoint

if TYPE_CHECKING:
    _Pdb = pdb.Pdb
else:
    _Pdb = object

_IF = re.compile(r"([^,]+?)\s+if\s+(.+)", re.DOTALL)
_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


class BreakpointCommands(_Pdb):
    """A mixin before ``pdb.Pdb``: one table for all threads, files by the end of their path, only lines with code."""

    agent: Any
    loaded_only = False  # whether a file must be loaded already

    # ---- the table

    @property
    def breaks(self) -> dict[str, list[int]]:
        return BREAKS

    @breaks.setter
    def breaks(self, value: Any) -> None:
        """Ignore it: pdb resets the table when it starts or has cleared it, and here all threads share it."""

    def _load_breaks(self) -> None:
        """Do not adopt breakpoints that the job has set with its own pdb."""

    def share(self) -> None:
        """Share the `commands` of breakpoints between the threads."""
        for name in ("commands", "commands_doprompt", "commands_silent"):
            if hasattr(self, name):
                setattr(self, name, SHARED.setdefault(name, {}))

    def canonic(self, filename: str) -> str:
        return source_lines.canonic(filename)

    def clear_all_breaks(self) -> Any:
        if not self.breaks:
            return "There are no breakpoints"
        with self.agent.breakpoints.lock:
            for known in list(bdb.Breakpoint.bpbynumber):
                if known is not None and known.line in self.breaks.get(known.file, ()):
                    known.deleteMe()
            self.breaks.clear()
        return None

    def arm(self) -> None:
        """Arm what the tables contain, and print why if that is not possible."""
        why = self.agent.breakpoints.rearm()
        if why:
            self.error(why)

    # ---- breakpoints

    def do_break(self, arg: str, temporary: Any = 0) -> Any:
        """b(reak) [([FILE:]LINE | FUNCTION) [, CONDITION]]

        Set a breakpoint, or list all. FILE may be the end of a path. `if CONDITION` is accepted as well.
        """
        if not arg:
            super().do_break(arg)
            self._list_watches()
            return None
        place, condition = _split(arg)
        file, colon, line = place.rpartition(":")
        if colon and line.strip().isdigit():
            try:
                place = f"{source_lines.find(file.strip())}:{line.strip()}"
            except source_lines.NoSuchLine as error:
                if self.loaded_only or isinstance(error, source_lines.AmbiguousFile):
                    return self.error(str(error))
        elif not place.isdigit():
            function = self._function(place)
            if function is not None:
                return self._break_function(function, temporary, condition)
        return super().do_break(f"{place}, {condition}" if condition else place, temporary)

    do_b = do_break

    def do_tbreak(self, arg: str) -> Any:
        """tbreak [([FILE:]LINE | FUNCTION) [, CONDITION]]

        Set a temporary breakpoint: it is deleted when it is reached.
        """
        return self.do_break(arg, True)

    def _function(self, name: str) -> FunctionType | None:
        """Return the function of a name in a frame of this thread, in __main__ or in a module, without decorators."""
        if not _NAME.fullmatch(name):
            return None
        for scope in self._scopes():
            value: Any = scope
            for part in name.split("."):
                value = value.get(part) if value is scope else inspect.getattr_static(value, part, None)
                value = getattr(value, "__func__", value)
            try:
                value = inspect.unwrap(value)
            except ValueError:
                continue
            if isinstance(value, FunctionType):
                return value
        return None

    def _scopes(self) -> Iterator[dict[str, Any]]:
        for frame in thread_states.stack(self.curframe):
            yield {**frame.f_globals, **frame.f_locals}
        for name in ("__main__", *list(sys.modules)):
            module = sys.modules.get(name)
            if name == "__main__":
                yield vars(module)
            elif "." not in name:
                yield {name: module}

    def _break_function(self, function: FunctionType, temporary: Any, condition: str) -> Any:
        """Set a breakpoint as pdb does, for a name that pdb does not find, and not in the decorator."""
        code = function.__code__
        line = source_lines.first_line(code) if sys.version_info >= (3, 13) else code.co_firstlineno
        why = self.set_break(code.co_filename, line, bool(temporary), condition or None, code.co_name)
        if why:
            return self.error(why)
        added = self.get_breaks(code.co_filename, line)[-1]
        added.func_first_executable_line = source_lines.first_line(code)
        return self.message(f"Breakpoint {added.number} at {added.file}:{added.line}")

    def set_break(self, filename: str, lineno: int, temporary: Any = 0, cond: Any = None, funcname: Any = None) -> Any:
        if cond:
            try:
                compile(cond.strip(), "<condition>", "eval")
            except SyntaxError as error:
                return f"the condition {cond!r} is not an expression: {error.msg}"
        with self.agent.breakpoints.lock:
            return super().set_break(filename, lineno, temporary, cond, funcname)

    def checkline(self, filename: str, lineno: int) -> int:
        why = source_lines.why_not(self.canonic(filename), lineno)
        if why:
            self.error(why)
            return 0
        return int(super().checkline(filename, lineno))

    def break_here(self, frame: FrameType) -> bool:
        """Whether a breakpoint stops this frame; pdb calls this at each line. Another thread may clear breakpoints."""
        due = self.agent.breakpoints.events.due(frame)
        if due is None:
            return False
        self.currentbp = due[0].number
        if due[0].temporary and "raised" not in due[1]:
            self.do_clear(str(due[0].number))
        return True

    def do_clear(self, arg: str) -> Any:
        """cl(ear) N [N ...] | FILE:LINE | all

        Delete breakpoints, watchpoints or logpoints by number, the breakpoints of a line, or all breakpoints.
        """
        if not arg:  # pdb would ask for a confirmation at the job's terminal
            return self.error("cl needs an argument: cl N, cl FILE:LINE or cl all")
        known = self.agent.breakpoints
        if arg.strip() == "all":
            self.clear_all_breaks()
            return self.message("Deleted all breakpoints")
        if ":" in arg:
            file, _, line = arg.rpartition(":")
            try:
                arg = f"{source_lines.find(file.strip())}:{line.strip()}"
            except source_lines.NoSuchLine:
                pass  # pdb prints the error
            with known.lock:
                return super().do_clear(arg)
        for number in arg.split():
            if number.isdecimal() and known.drop_watch(int(number)):
                self.message(f"Deleted watchpoint {number}")
            elif number.isdecimal() and known.drop_probe(int(number)):
                self.message(f"Deleted logpoint {number}")
            else:
                with known.lock:
                    super().do_clear(number)
        return None

    do_cl = do_clear

    def do_until(self, arg: str) -> Any:
        """unt(il) [LINE | FILE:LINE]

        Continue until a greater line, or until LINE. FILE:LINE: the same as `tbreak FILE:LINE` and `continue`.
        """
        if ":" not in arg:
            return super().do_until(arg)
        before = len(bdb.Breakpoint.bpbynumber)
        self.do_tbreak(arg)
        return self.do_continue("") if len(bdb.Breakpoint.bpbynumber) > before else None

    do_unt = do_until

    # ---- watches

    def do_watch(self, arg: str) -> Any:
        """watch [EXPRESSION]

        Stop when the value of EXPRESSION changes. It is evaluated after each line of the functions that are now on the
        stack of this thread. Without an argument, list the watchpoints.
        """
        if not arg:
            return self._list_watches()
        try:
            code = compile(arg.strip(), "<watch>", "eval")
        except SyntaxError as error:
            return self.error(f"{arg!r} is not an expression: {error.msg}")
        known = self.agent.breakpoints
        stack = [frame for frame in thread_states.stack(self.innermost) if not thread_states.of_ours(frame)]
        codes = {id(frame.f_code): frame.f_code for frame in stack}
        for frame in self.watchable:
            watch = Watchpoint(
                number=0, source=arg.strip(), code=code, thread=self.watched_thread, frame=frame, codes=codes
            )
            watch.begin()
            if watch.mark != ("raised", "NameError") or len(self.watchable) == 1:
                break
        else:
            thread = thread_states.name_of(self.watched_thread)
            return self.error(f"{arg.strip()} is not defined in any frame of {thread}")
        with known.lock:
            watch.number = next_number()
            known.watches[watch.number] = watch
        return self.message(f"Watchpoint {watch.number}: {watch.source}, now {watch.text}")

    @property
    def watchable(self) -> list[FrameType]:
        """The frames in which a watched name is looked up: the selected one."""
        return [self.curframe] if self.curframe is not None else []

    @property
    def innermost(self) -> FrameType | None:
        """The innermost frame of the thread that is stopped or inspected."""
        return self.stack[-1][0] if self.stack else None

    @property
    def watched_thread(self) -> int:
        return int(self.agent.stop_state.thread)

    def _list_watches(self) -> None:
        for watch in list(self.agent.breakpoints.watches.values()):
            self.message(f"{watch.number:<4}watchpoint   {watch.source}, last {watch.text}")

    def do_unwatch(self, arg: str) -> Any:
        """unwatch [N ...]

        Delete watchpoints by number, or all.
        """
        known = self.agent.breakpoints
        for number in arg.split() or [str(number) for number in list(known.watches)]:
            if number.isdecimal() and known.drop_watch(int(number)):
                self.message(f"Deleted watchpoint {number}")
            else:
                self.error(f"there is no watchpoint {number}")
        return None

    # ---- exceptions

    def do_catch(self, arg: str) -> Any:
        """catch [NAME ... | off [NAME ...]]

        Stop where an exception of class NAME, or of a subclass, is raised. Without an argument, list the names.
        """
        known = self.agent.breakpoints
        words = arg.split()
        with known.lock:
            if not words:
                return self.message("catching " + (", ".join(known.catches) or "nothing"))
            if words[0] == "off":
                for name in words[1:] or list(known.catches):
                    if name not in known.catches:
                        self.error(f"{name} is not caught")
                    known.catches.pop(name, None)
                return None
            wrong = [name for name in words if not _NAME.fullmatch(name)]
            if wrong:
                return self.error(f"{wrong[0]!r} is not the name of an exception")
            known.catches.update(dict.fromkeys(words))
        return self.message("catching " + ", ".join(known.catches))


def _split(arg: str) -> tuple[str, str]:
    """Return a place and its condition, from pdb's syntax (with a comma) or gdb's (with if)."""
    match = _IF.fullmatch(arg.strip())
    if match is not None:
        return match[1].strip(), match[2].strip()
    place, _, condition = arg.partition(",")
    return place.strip(), condition.strip()
