"""pdb's commands for breakpoints, as they are for a rank, and ours beside them: watch, unwatch, catch."""

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
    """Comes before ``pdb.Pdb``: one table for all threads, files by the end of their path, and lines that have code."""

    agent: Any
    loaded_only = False  # whether a file must be loaded already

    # ---- the table

    @property
    def breaks(self) -> dict[str, list[int]]:
        return BREAKS

    @breaks.setter
    def breaks(self, value: Any) -> None:
        """Everybody's: that one pdb begins, or has cleared its own, changes nothing."""

    def _load_breaks(self) -> None:
        """Those that the job has set by itself are not ours."""

    def share(self) -> None:
        """Commands of a breakpoint are its own, whichever thread comes to it."""
        for name in ("commands", "commands_doprompt", "commands_silent"):
            if hasattr(self, name):
                setattr(self, name, SHARED.setdefault(name, {}))

    def canonic(self, filename: str) -> str:
        return source_lines.canonic(filename)

    def clear_all_breaks(self) -> Any:
        if not self.breaks:
            return "There are no breakpoints"
        with self.agent.breakpoints.lock:
            for one in list(bdb.Breakpoint.bpbynumber):
                if one is not None and one.line in self.breaks.get(one.file, ()):
                    one.deleteMe()
            self.breaks.clear()
        return None

    def arm(self) -> None:
        """Make what the threads come back to what the tables say; tell whoever asked, if it cannot be."""
        why = self.agent.breakpoints.rearm()
        if why:
            self.error(why)

    # ---- breakpoints

    def do_break(self, arg: str, temporary: Any = 0) -> Any:
        """b(reak) [([FILE:]LINE | FUNCTION) [, CONDITION]]: FILE is the end of a path; `if CONDITION` will do too."""
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
                if self.loaded_only or "more than one" in str(error):
                    return self.error(str(error))
        elif not place.isdigit():
            found = self._function(place)
            if found is not None:
                return self._break_function(found, temporary, condition)
        return super().do_break(f"{place}, {condition}" if condition else place, temporary)

    do_b = do_break

    def do_tbreak(self, arg: str) -> Any:
        """tbreak: as break, but it is gone when it was come to."""
        return self.do_break(arg, True)

    def _function(self, name: str) -> FunctionType | None:
        """What a name means in a frame of this thread, in the program, or in a module; without what decorates it."""
        if not _NAME.fullmatch(name):
            return None
        for scope in self._scopes():
            found: Any = scope
            for part in name.split("."):
                found = found.get(part) if found is scope else inspect.getattr_static(found, part, None)
                found = getattr(found, "__func__", found)
            try:
                found = inspect.unwrap(found)
            except ValueError:
                continue
            if isinstance(found, FunctionType):
                return found
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
        """As pdb sets it; but by a name that it does not find, and not in the decorator."""
        code = function.__code__
        line = source_lines.first_line(code) if sys.version_info >= (3, 13) else code.co_firstlineno
        why = self.set_break(code.co_filename, line, bool(temporary), condition or None, code.co_name)
        if why:
            return self.error(why)
        made = self.get_breaks(code.co_filename, line)[-1]
        made.func_first_executable_line = source_lines.first_line(code)
        return self.message(f"Breakpoint {made.number} at {made.file}:{made.line}")

    def set_break(self, filename: str, lineno: int, temporary: Any = 0, cond: Any = None, funcname: Any = None) -> Any:
        if cond:
            try:
                compile(cond.strip(), "<condition>", "eval")
            except SyntaxError as error:
                return f"the condition {cond!r} is no expression: {error.msg}"
        with self.agent.breakpoints.lock:
            return super().set_break(filename, lineno, temporary, cond, funcname)

    def checkline(self, filename: str, lineno: int) -> int:
        why = source_lines.why_not(self.canonic(filename), lineno)
        if why:
            self.error(why)
            return 0
        return int(super().checkline(filename, lineno))

    def break_here(self, frame: FrameType) -> bool:
        """As pdb asks at each line that it steps; another thread may clear a breakpoint meanwhile."""
        due = self.agent.breakpoints.due(frame)
        if due is None:
            return False
        self.currentbp = due[0].number
        if due[0].temporary and "raised" not in due[1]:
            self.do_clear(str(due[0].number))
        return True

    def do_clear(self, arg: str) -> Any:
        """cl(ear) N, FILE:LINE or all: without one pdb would ask whether it is meant."""
        if not arg:
            return self.error("say which: cl N, cl FILE:LINE, or cl all")
        known = self.agent.breakpoints
        if arg.strip() == "all":
            self.clear_all_breaks()
            return self.message("Deleted all breakpoints")
        if ":" in arg:
            file, _, line = arg.rpartition(":")
            try:
                arg = f"{source_lines.find(file.strip())}:{line.strip()}"
            except source_lines.NoSuchLine:
                pass  # pdb says it
            with known.lock:
                return super().do_clear(arg)
        for one in arg.split():
            if one.isdigit() and known.drop_watch(int(one)):
                self.message(f"Deleted watch {one}")
            elif one.isdigit() and known.drop_probe(int(one)):
                self.message(f"Deleted probe {one}")
            else:
                with known.lock:
                    super().do_clear(one)
        return None

    do_cl = do_clear

    def do_until(self, arg: str) -> Any:
        """unt(il) [LINE | FILE:LINE]: with a file, as `tbreak` and `continue`."""
        if ":" not in arg:
            return super().do_until(arg)
        before = len(bdb.Breakpoint.bpbynumber)
        self.do_tbreak(arg)
        return self.do_continue("") if len(bdb.Breakpoint.bpbynumber) > before else None

    do_unt = do_until

    # ---- watches

    def do_watch(self, arg: str) -> Any:
        """watch EXPRESSION: stop when it is another; looked at after each line of the functions that are under way."""
        if not arg:
            return self._list_watches()
        try:
            code = compile(arg.strip(), "<watch>", "eval")
        except SyntaxError as error:
            return self.error(f"{arg!r} is no expression: {error.msg}")
        known = self.agent.breakpoints
        stack = [one for one in thread_states.stack(self.innermost) if not thread_states.of_ours(one)]
        codes = {id(one.f_code): one.f_code for one in stack}
        for frame in self.watchable:
            made = Watchpoint(
                number=0, source=arg.strip(), code=code, thread=self.watched_thread, frame=frame, codes=codes
            )
            made.begin()
            if made.mark != ("raised", "NameError") or len(self.watchable) == 1:
                break
        else:
            return self.error(f"{arg.strip()} is known nowhere in {thread_states.name_of(self.watched_thread)}")
        with known.lock:
            made.number = next_number()
            known.watches[made.number] = made
        return self.message(f"Watch {made.number}: {made.source}, now {made.text}")

    @property
    def watchable(self) -> list[FrameType]:
        """The frames that a name may be of: the one that was chosen."""
        return [self.curframe] if self.curframe is not None else []

    @property
    def innermost(self) -> FrameType | None:
        """Of the thread that is stopped, or looked at."""
        return self.stack[-1][0] if self.stack else None

    @property
    def watched_thread(self) -> int:
        return int(self.agent.stop_state.thread)

    def _list_watches(self) -> None:
        for one in list(self.agent.breakpoints.watches.values()):
            self.message(f"{one.number:<4}watch        {one.source}, last {one.text}")

    def do_unwatch(self, arg: str) -> Any:
        """unwatch [N]: a watch, or all of them, ends."""
        known = self.agent.breakpoints
        for one in arg.split() or [str(number) for number in list(known.watches)]:
            if one.isdigit() and known.drop_watch(int(one)):
                self.message(f"Deleted watch {one}")
            else:
                self.error(f"there is no watch {one}")
        return None

    # ---- exceptions

    def do_catch(self, arg: str) -> Any:
        """catch [NAME | off [NAME]]: stop where an exception of that class, or of one below it, is raised."""
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
                return self.error(f"{wrong[0]!r} is no name of an exception")
            known.catches.update(dict.fromkeys(words))
        return self.message("catching " + ", ".join(known.catches))


def _split(arg: str) -> tuple[str, str]:
    """A place and its condition, in pdb's spelling (with a comma) or in gdb's (with if)."""
    found = _IF.fullmatch(arg.strip())
    if found is not None:
        return found[1].strip(), found[2].strip()
    place, _, condition = arg.partition(",")
    return place.strip(), condition.strip()
