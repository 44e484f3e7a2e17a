"""The commands of the console, and which lines are for pdb."""

from __future__ import annotations

import re

from msgspec import Struct

from breakranks.rank_messages import ARMING
from breakranks.rankset import RankSet


class CommandWord(Struct, frozen=True, kw_only=True):
    """A parsed line: the ``name`` of a command, or "pdb" or "nothing", and the ``rest`` behind it."""

    name: str
    rest: str = ""
    ranks: RankSet | None = None  # of `rank 3 CMD`
    everyone: bool = False  # `all CMD`


_COMMANDS = {
    "focus": "focus",
    "hold": "hold",
    "go": "go",
    "interrupt": "interrupt",
    "ranks": "ranks",
    "stacks": "stacks",
    "why": "why",
    "wait": "wait",
    "help": "help",
    "h": "help",
    "?": "help",
    "q": "quit",
    "quit": "quit",
    "exit": "quit",
    "EOF": "quit",
    "kill-job": "kill",
}
STEPS = frozenset("n next s step r return unt until j jump c cont continue".split())
# Commands of pdb with which a rank resumes, as it does with `go`.
RESUMING = [[name] for name in "c cont continue".split()]
NAMES = (*(name for name in _COMMANDS if len(name) > 1 and name != "EOF"), "all", "rank")
_ON = re.compile(r"ranks?\s+([0-9][0-9,/-]*|all|held|stopped)\s+(\S.*)\Z", re.DOTALL)
_SOME = re.compile(r"(.*\S)\s+on\s+(?:ranks?\s+)?([0-9][0-9,/-]*|all)\Z", re.DOTALL)
_WORD = re.compile(r"([a-z?EOF-]+)(?:\s+(.*))?\Z", re.DOTALL)

HELP = """\
A line goes to pdb in every rank of the focus, [0-3] in the prompt. Equal answers are shown once.

  w  u  d  l  ll  a  p X  pp X       where, up, down, list, arguments, print, as in pdb
  n  s  r  unt  c  b  tbreak  cl     next, step, return, until, continue, breakpoints, as in pdb
  help NAME                          pdb's help on one of its commands

  b FILE:LINE [if COND] [on SET]     set a breakpoint, also in ranks that run; tbreak, until FILE:LINE: once
  watch X, catch EXC                 stop when X changes, or where EXC is raised; unwatch N, catch off
  locals, threads, thread NAME       all names of the frame; the threads; inspect another thread

  focus 0-3        set the ranks that get lines (also: all, held, stopped, auto)
  all CMD          run CMD once in all stopped ranks:  all n,  all p model(x)
  rank 3 CMD       run CMD once in these ranks:        rank 3 p loss,  rank 0,4-7 w
  ranks            show where all ranks are
  go [SET]         resume ranks; without a set, all
  hold [SET]       stop ranks that run, and hold them
  interrupt [SET]  stop ranks of the focus that run, or end what they evaluate
  stacks, why      the commands of the command line, for this job
  wait [SECONDS]   wait until a rank stops
  q                leave: the job resumes, and its breakpoints no longer stop
  kill-job         end the job, after confirmation

`c` resumes the focus up to its next breakpoint. Ranks that are held for it resume when it leaves the debugger.
To use a variable that is named like a command: p why, !go = 3
"""


def is_arming(line: str) -> bool:
    """Whether a line sets what ranks stop at, which is also for ranks that run."""
    return bool(ARMING.intersection(line.split()[:1]))


def parse(line: str) -> CommandWord:
    """Parse a line. Everything but the commands of the console is for pdb."""
    text = line.strip()
    if not text or text.startswith("#"):
        return CommandWord(name="nothing")
    on = _ON.match(text)
    if on is not None:
        if on[1] in ("all", "stopped"):
            return CommandWord(name="pdb", rest=on[2], everyone=True)
        if on[1] != "held":
            return CommandWord(name="pdb", rest=on[2], ranks=RankSet.parse(on[1]))
    if text == "all" or text.startswith("all "):
        return CommandWord(name="pdb", rest=text[4:].strip(), everyone=True)
    some = _SOME.match(text)
    if some is not None and is_arming(text):  # b train.py:30 if loss > 9 on 0-3
        everyone = some[2] == "all"
        return CommandWord(
            name="pdb", rest=some[1], ranks=None if everyone else RankSet.parse(some[2]), everyone=everyone
        )
    match = _WORD.match(text)
    if match is not None and match[1] in _COMMANDS and not (match[2] or "").startswith(("=", ".", "(", "[")):
        return CommandWord(name=_COMMANDS[match[1]], rest=(match[2] or "").strip())
    return CommandWord(name="pdb", rest=text)
