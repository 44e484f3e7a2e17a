"""What people call in their code: breakpoint, hold, go, post_mortem. None of it ever raises into the job."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import traceback
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from breakranks.errors import UsageError
from breakranks.rank import fork_hooks, rank_identity, rank_output, run_dir
from breakranks.rank.breakpoint_sites import SITES, BreakpointSite
from breakranks.rankset import RankSet

if TYPE_CHECKING:
    from breakranks.rank.agent import RankAgent
    from breakranks.rank.rank_pdb import RankPdb
    from breakranks.rank.stop_state import StopInfo
    from breakranks.rank.unload import Unload

Ranks = int | str | list[int] | tuple[int, ...] | range | set[int] | None

_agent: RankAgent | None = None
_broken = ""  # why there is no agent; said once
_starting = threading.Lock()
_said_off = False
_known_site = SITES.get


def breakpoint(
    ranks: Ranks = None,
    *,
    others: str = "hold",
    when: object = True,
    times: int | None = None,
    skip: int = 0,
) -> None:
    """Stop here: the ranks of ``ranks`` at a prompt, the others held at this line, or running on (``others="run"``).

    ``ranks`` is a number, a set written ``"0-3,7"``, a list, or ``"all"``; without it BREAKRANKS_RANKS says, else 0.
    ``when`` is a condition: a value, a function without arguments, or an expression as text. ``skip`` lets the first so
    many calls pass at which the condition holds, ``times`` stops so often at most; both count per line of code.
    Get to a stopped rank with ``breakranks console``.
    """
    frame = sys._getframe(1)
    known = _known_site((id(frame.f_code), frame.f_lasti))
    if when is False and known is not None:  # by far the most frequent, so with as little as can be
        known.calls += 1
        return
    site = known or SITES.at(frame)
    if (_agent is None and _start() is None) or (when is not True and not _holds(when, frame, site)):
        site.calls += 1
        return
    site.fired += 1
    if site.fired <= skip or (times is not None and site.stops >= times):
        site.calls += 1
        return
    site.stops += 1
    traced = fire(frame, site, ranks, others)
    if traced is not None:
        traced.trace_from(frame)  # last of all: what is called after it would be traced


def hold(ranks: Ranks = "all") -> None:
    """Keep this rank here, if it is one of ``ranks``, until somebody says go: a console, or ``breakranks.go()``."""
    frame = sys._getframe(1)
    site = SITES.at(frame)
    agent = _start()
    if agent is None:
        return
    chosen = _chosen(ranks, agent, site)
    agent.watch.read_news()
    if chosen is not None and agent.me.rank in chosen and not agent.watch.off and not agent.stop_state.sits():
        # Held for itself: no other rank's leaving is awaited, only a word.
        traced = _stop(frame, site, "held", RankSet([agent.me.rank]), "hold", until_go=True)
        site.calls += 1
        if traced is not None:
            traced.trace_from(frame)


def go(ranks: Ranks = "all") -> None:
    """Let ranks go on that are held now, on all hosts."""
    agent = _start()
    if agent is None:
        return
    chosen = _chosen(ranks, agent, None)
    if chosen is not None:
        agent.watch.announce({"do": "go", "ranks": str(chosen), "counts": SITES.begun()})


def post_mortem(error: BaseException | TracebackType | None = None, *, ranks: Ranks = "all") -> None:
    """Look at a crash where it happened, while the other ranks hold.

    Within ``except``, or with an exception: now. Otherwise from now on, for every exception that nobody catches.
    """
    agent = _start()
    if agent is None:
        return
    chosen = _chosen(ranks, agent, None)
    if chosen is None:
        return
    found = error if error is not None else sys.exc_info()[1]
    if found is None:
        _install_hook(chosen)
        return
    trace = found if isinstance(found, TracebackType) else found.__traceback__
    if agent.me.rank in chosen and trace is not None:
        _keep(agent, trace, "" if isinstance(found, TracebackType) else _said(found))


# ---- for whoever attaches, and the console's side


def present() -> RankAgent | None:
    """The agent of this process, if it has one."""
    if _agent is not None and _agent.pid != os.getpid():
        _forked()
    return _agent


def attach(me: rank_identity.RankIdentity, leaving: Unload, guest: dict[str, Any]) -> RankAgent:
    """Start the agent because somebody has come, not because the job called; it goes when they have gone."""
    global _agent
    with fork_hooks.ForksPaused(), _starting:
        from breakranks.rank.agent import RankAgent

        if _agent is None:
            fork_hooks.begin(_forked)
            made = RankAgent(me, forked=present, left=forget, leaving=leaving, guest=guest)
            made.start()
            _agent = made
    return _agent


def forget(gone: RankAgent) -> None:
    """The agent has left; the next breakpoint starts another."""
    global _agent
    with _starting:
        if _agent is gone:
            _agent = None
            gone.pdbs.clear()
            fork_hooks.end()


# ---- within


def _start() -> RankAgent | None:
    global _agent, _broken
    if present() is not None or _broken:
        return _agent
    with fork_hooks.ForksPaused(), _starting:
        if _agent is None and not _broken:
            fork_hooks.begin(_forked)
            try:
                from breakranks.rank.agent import RankAgent

                made = RankAgent(rank_identity.who(), forked=present, left=forget)
                made.start()
                _agent = made
            except run_dir.NotPrivateFolder as error:
                _broken = str(error)
            except Exception as error:  # a full disk, no threads left: the job is worth more than its breakpoint
                _broken = f"no agent can be started here: {error!r}"
            if _broken:
                rank_output.say(f"the breakpoints of this process are off. {_broken}")
    return _agent


def _forked() -> None:
    """In a child: nothing of its parent's debugging is there. No lock is taken, whose owner may not be there."""
    global _agent, _broken, _starting
    agent, _agent, _broken, _starting = _agent, None, "", threading.Lock()
    if agent is None:
        return
    with contextlib.suppress(Exception):
        agent.abandon()
    mine = agent.pdbs.of(threading.get_ident())
    displaced = mine.displaced if mine is not None else None
    for pdb in agent.pdbs.all():
        pdb.return_streams()
    agent.pdbs.clear()
    agent.breakpoints.abandon(sys._getframe(), displaced)


def _holds(when: object, frame: FrameType, site: BreakpointSite) -> bool:
    if when is False:
        return False
    try:
        if isinstance(when, str):
            if site.condition is None or site.condition[0] != when:
                site.condition = (when, compile(when.strip(), f"<when of {site.name}>", "eval"))
            when = eval(site.condition[1], frame.f_globals, frame.f_locals)
        elif callable(when):
            when = when()
        return bool(when)
    except Exception as error:
        _complain(site, f"the condition at {site.name} raised {type(error).__name__}: {error}; it does not stop there")
        return False


def _complain(site: BreakpointSite | None, text: str) -> None:
    """Once a site: a loop comes by a million times."""
    if site is None or not site.complained:
        rank_output.say(text)
    if site is not None:
        site.complained = True


def _chosen(ranks: Ranks, agent: RankAgent, site: BreakpointSite | None) -> RankSet | None:
    """The ranks that are meant, as far as the job has them; None where that is none."""
    if ranks is None:
        ranks = os.environ.get("BREAKRANKS_RANKS") or 0
    everyone = RankSet.span(0, agent.me.world)
    try:
        if isinstance(ranks, (int, str)):
            asked = everyone if ranks == "all" else RankSet.parse(str(ranks))
        else:
            asked = RankSet(ranks)
    except (UsageError, ValueError, TypeError) as error:
        _complain(site, f"ranks={ranks!r} is not understood ({error}); write 3, '0-3,7', [0, 1] or 'all'")
        return None
    if asked - everyone:
        _complain(site, f"there is no rank {asked - everyone} in this job of {agent.me.world} (ranks={ranks!r})")
    return asked & everyone or None


def fire(
    frame: FrameType, site: BreakpointSite, ranks: Ranks, others: str, *, until_go: bool = False
) -> RankPdb | None:
    """Stop, hold or run past, as this rank's part is; the debugger, where it is to trace from here."""
    site.inside += 1
    try:
        return _take_part(frame, site, ranks, others, until_go)
    finally:
        site.inside -= 1
        site.calls += 1
        if _agent is not None:
            _agent.watch.publish()  # who holds for this rank goes on when the call is counted


def _take_part(frame: FrameType, site: BreakpointSite, ranks: Ranks, others: str, until_go: bool) -> RankPdb | None:
    agent = _start()
    if agent is None or agent.stop_state.sits():
        return None  # what is evaluated at a prompt does not stop again
    agent.me = rank_identity.who()._replace(job=agent.me.job, helper=agent.me.helper)  # torch may know more by now
    agent.watch.meet()
    chosen = _chosen(ranks, agent, site)
    if chosen is None:
        return None
    if others not in ("hold", "run"):
        _complain(site, f"others={others!r} is not understood; it is 'hold' or 'run'. They are held.")
    agent.watch.read_news()
    if agent.watch.off:
        _say_off(site, agent.me)
        return None
    if agent.me.rank in chosen:
        return _stop(frame, site, "prompt", chosen, "breakpoint", until_go=until_go)
    if agent.me.helper:  # a helper of a rank that does not stop is nobody's to hold
        return None
    if others == "run":
        agent.watch.run_past(_made(site, "held", chosen, "breakpoint", until_go))
        return None
    return _stop(frame, site, "held", chosen, "breakpoint", until_go=until_go)


def _made(site: BreakpointSite, role: str, stoppers: RankSet, reason: str, until_go: bool) -> StopInfo:
    from breakranks.rank.stop_state import StopInfo

    return StopInfo(
        site=site.name, count=site.calls + 1, role=role, stoppers=stoppers, reason=reason, until_go=until_go
    )


def _stop(
    frame: FrameType, site: BreakpointSite, role: str, stoppers: RankSet, reason: str, *, until_go: bool
) -> RankPdb | None:
    with fork_hooks.ForksPaused():
        from breakranks.rank import stop_notice, thread_location

    agent = _agent
    if agent is None:
        return None
    stop = _made(site, role, stoppers, reason, until_go)
    stop.where = thread_location.place(frame)
    stop_notice.announce(agent, stop)
    pdb = agent.pdbs.mine()
    pdb.stop_at(frame, stop)
    return pdb if agent.stop_state.tracing else None


def _say_off(site: BreakpointSite, me: rank_identity.RankIdentity) -> None:
    global _said_off
    if not _said_off and me.local_rank == 0:
        rank_output.say(
            f"passed {site.name}: breakpoints are off since the console left; `breakranks console` arms them"
        )
    _said_off = True


def _install_hook(chosen: RankSet) -> None:
    before = sys.excepthook
    if getattr(before, "breakranks", False):
        return

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> Any:
        before(kind, error, trace)
        agent = _agent
        seen = rank_output.standing_error()
        if seen is not sys.stderr and seen is not None:
            traceback.print_exception(kind, error, trace, file=seen)  # nobody sees it there while this rank is kept
        if agent is None or trace is None or issubclass(kind, KeyboardInterrupt) or agent.me.rank not in chosen:
            return
        _keep(agent, trace, _said(error))

    keep: Callable[..., Any] = hook
    keep.breakranks = True  # type: ignore[attr-defined]
    sys.excepthook = hook


def _said(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:500]
    except Exception:
        return type(error).__name__


def _keep(agent: RankAgent, trace: TracebackType, what: str) -> None:
    """Keep a rank at the place of its crash, and hold the others meanwhile."""
    with fork_hooks.ForksPaused():
        from breakranks.rank import stop_notice, thread_location
        from breakranks.rank.stop_state import StopInfo

    agent.watch.read_news()
    if agent.watch.off or agent.stop_state.sits():
        return
    mine = RankSet([agent.me.rank])
    others = RankSet.span(0, agent.me.world) - mine
    reason = f"crashed: {what}" if what else "crashed"
    stop = StopInfo(site="", count=0, role="prompt", stoppers=mine, reason=reason, holds=others)
    innermost = trace
    while innermost.tb_next is not None:
        innermost = innermost.tb_next
    stop.where = thread_location.place(innermost.tb_frame)
    stop_notice.announce(agent, stop)
    agent.pdbs.mine().post_mortem(trace, stop)


for _one in (breakpoint, hold, go, post_mortem):
    setattr(_one, "_torchdynamo_disable", True)  # noqa: B010  # torch.compile breaks its graph here, without a word
