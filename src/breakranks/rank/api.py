"""The functions that a program calls: breakpoint, hold, go, post_mortem. None of them raises into the job."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from breakranks.errors import UsageError
from breakranks.rank import fork_hooks, rank_identity, rank_output, run_dir
from breakranks.rank.breakpoint_calls import SITES, BreakpointSite
from breakranks.rankset import RankSet, ranks_text

if TYPE_CHECKING:
    from breakranks.rank.agent import RankAgent
    from breakranks.rank.rank_pdb import RankPdb
    from breakranks.rank.stop_state import StopInfo
    from breakranks.rank.unload import Unload

Ranks = int | str | list[int] | tuple[int, ...] | range | set[int] | None

_agent: RankAgent | None = None
_broken = ""  # why no agent can start; printed once
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
    """Stop the ranks ``ranks`` at a pdb prompt at this line, and hold the other ranks here.

    Connect with ``breakranks console``. Without a console, a breakpoint waits forever, as pdb does.

    ``ranks``: a rank, a set such as ``"0-3,7"``, a list of ranks, or ``"all"``. Default: the environment variable
    BREAKRANKS_RANKS, or rank 0.
    ``others``: ``"hold"`` holds the other ranks at this line, ``"run"`` lets them run.
    ``when``: a condition: a value, a function without arguments, or an expression as text, which is evaluated in the
    caller. If it raises, the rank prints the error once and does not stop.
    ``times``: stop at most this number of times.
    ``skip``: do not stop the first ``skip`` times that the condition is true. ``times`` and ``skip`` count for each
    line of code separately.

    For example::

        breakranks.breakpoint()  # rank 0 stops, the other ranks are held
        breakranks.breakpoint(3, when=loss > 10)
        breakranks.breakpoint("all", when="step == 100", times=1)
    """
    frame = sys._getframe(1)
    known = _known_site((id(frame.f_code), frame.f_lasti))
    if when is False and known is not None:  # the most frequent case: keep it cheap
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
        traced.trace_from(frame)  # the last call: any later one would be traced


def hold(ranks: Ranks = "all") -> None:
    """Hold this rank at this line, if it is one of ``ranks``, until ``go`` in a console or ``breakranks.go()``.

    ``ranks`` is as in ``breakranks.breakpoint``. For example::

        breakranks.hold("0-3")
    """
    frame = sys._getframe(1)
    site = SITES.at(frame)
    agent = _start()
    if agent is None:
        return
    chosen = _chosen(ranks, agent, site)
    agent.coordination.read_news()
    if chosen is not None and agent.me.rank in chosen and not agent.coordination.off and not agent.stop_state.sits():
        # Held for itself: only `go` releases it, not the release of another rank.
        traced = _stop(frame, site, "held", RankSet([agent.me.rank]), "hold", until_go=True)
        site.calls += 1
        if traced is not None:
            traced.trace_from(frame)


def go(ranks: Ranks = "all") -> None:
    """Release the ranks of ``ranks`` that are held now, on all hosts.

    For example, on a rank that runs::

        breakranks.go("1-3")
    """
    agent = _start()
    if agent is None:
        return
    chosen = _chosen(ranks, agent, None)
    if chosen is not None:
        agent.coordination.announce({"do": "go", "ranks": str(chosen), "counts": SITES.begun()})


def post_mortem(error: BaseException | TracebackType | None = None, *, ranks: Ranks = "all") -> None:
    """Open a pdb prompt where an exception was raised, in the ranks ``ranks``, and hold the other ranks.

    Within ``except``, or with ``error``, the prompt opens now. Otherwise it opens for every uncaught exception from now
    on: call it on all ranks, at the start of the program. For example::

        breakranks.post_mortem()
    """
    agent = _start()
    if agent is None:
        return
    chosen = _chosen(ranks, agent, None)
    if chosen is None:
        return
    raised = error if error is not None else sys.exc_info()[1]
    if raised is None:
        _install_hook(chosen)
        return
    trace = raised if isinstance(raised, TracebackType) else raised.__traceback__
    if agent.me.rank in chosen and trace is not None:
        _keep(agent, trace, "" if isinstance(raised, TracebackType) else _error_text(raised))


def preload() -> bool:
    """Start the agent of this process now, without a stop: consoles then need no permission to trace it.

    Return False where it cannot start; the reason is printed once. ``breakranks run`` calls it in each rank.
    """
    # A signal that the job blocks, to wait for it, must not come to the threads of the agent: they inherit the mask.
    faults = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - faults)
    try:
        return _start() is not None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# ---- for attach_entry and the agent


def present() -> RankAgent | None:
    """Return the agent of this process, if it has one."""
    if _agent is not None and _agent.pid != os.getpid():
        _forked()
    return _agent


def attach(me: rank_identity.RankIdentity, leaving: Unload, guest: dict[str, Any]) -> RankAgent:
    """Start the agent for a console that attaches. The agent leaves with its last console."""
    global _agent
    with fork_hooks.ForksPaused(), _starting:
        from breakranks.rank.agent import RankAgent  # a job that reaches no breakpoint does not import it

        if _agent is None:
            fork_hooks.begin(_forked)
            agent = RankAgent(me, forked=present, left=forget, leaving=leaving, guest=guest)
            agent.start()
            _agent = agent
    return _agent


def forget(gone: RankAgent) -> None:
    """Forget an agent that has left; the next breakpoint starts a new one."""
    global _agent
    with _starting:
        if _agent is gone:
            _agent = None
            gone.pdbs.clear()
            fork_hooks.end()


# ---- helpers


def _start() -> RankAgent | None:
    global _agent, _broken
    if present() is not None or _broken:
        return _agent
    with fork_hooks.ForksPaused(), _starting:
        if _agent is None and not _broken:
            fork_hooks.begin(_forked)
            try:
                from breakranks.rank.agent import RankAgent  # as in attach

                agent = RankAgent(rank_identity.who(), forked=present, left=forget)
                agent.start()
                _agent = agent
            except run_dir.NotPrivateFolder as error:
                _broken = str(error)
            except Exception as error:  # a full disk, no threads left: the job must not fail for its breakpoint
                _broken = f"the agent cannot start: {error!r}"
            if _broken:
                rank_output.say(f"breakpoints are off in this process. {_broken}")
    return _agent


def _forked() -> None:
    """Drop the state of the parent in a forked child. Take no lock: its owner may be a thread that was not forked."""
    global _agent, _broken, _starting
    agent, _agent, _broken, _starting = _agent, None, "", threading.Lock()
    if agent is None:
        return
    with contextlib.suppress(Exception):
        agent.abandon()
    own_pdb = agent.pdbs.of(threading.get_ident())
    displaced = own_pdb.displaced if own_pdb is not None else None
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
        raised = f"{type(error).__name__}: {error}"
        _complain(site, f"the condition at {site.name} raised {raised}; the rank does not stop there")
        return False


def _complain(site: BreakpointSite | None, text: str) -> None:
    """Print once for each site: a loop may reach it a million times."""
    if site is None or not site.complained:
        rank_output.say(text)
    if site is not None:
        site.complained = True


def _chosen(ranks: Ranks, agent: RankAgent, site: BreakpointSite | None) -> RankSet | None:
    """Return those of ``ranks`` that the job has, or None if it has none of them."""
    if ranks is None:
        ranks = os.environ.get("BREAKRANKS_RANKS") or 0
    all_ranks = RankSet.span(0, agent.me.world)
    try:
        if isinstance(ranks, (int, str)):
            chosen = all_ranks if ranks == "all" else RankSet.parse(str(ranks))
        else:
            chosen = RankSet(ranks)
    except (UsageError, ValueError, TypeError) as error:
        _complain(site, f"ranks={ranks!r} is not a set of ranks ({error}); write 3, '0-3,7', [0, 1] or 'all'")
        return None
    if chosen - all_ranks:
        missing = ranks_text(chosen - all_ranks)
        _complain(site, f"this job has no {missing}; its ranks are {all_ranks} (ranks={ranks!r})")
    return chosen & all_ranks or None


def fire(
    frame: FrameType, site: BreakpointSite, ranks: Ranks, others: str, *, until_go: bool = False
) -> RankPdb | None:
    """Stop this rank, hold it or let it run. Return the debugger, where it is to trace from here."""
    site.inside += 1
    try:
        return _take_part(frame, site, ranks, others, until_go)
    finally:
        site.inside -= 1
        site.calls += 1
        if _agent is not None:
            _agent.coordination.publish()  # a rank that is held for this one resumes when the call is counted


def _take_part(frame: FrameType, site: BreakpointSite, ranks: Ranks, others: str, until_go: bool) -> RankPdb | None:
    agent = _start()
    if agent is None or agent.stop_state.sits():
        return None  # code that is evaluated at a prompt does not stop again
    agent.me = rank_identity.who()._replace(job=agent.me.job, helper=agent.me.helper)  # torch may be initialised now
    agent.coordination.meet()
    chosen = _chosen(ranks, agent, site)
    if chosen is None:
        return None
    if others not in ("hold", "run"):
        _complain(site, f"others={others!r} is not valid; write 'hold' or 'run'. The other ranks are held.")
    agent.coordination.read_news()
    if agent.coordination.off:
        _say_off(site, agent.me)
        return None
    if agent.me.rank in chosen:
        return _stop(frame, site, "prompt", chosen, "breakpoint", until_go=until_go)
    if agent.me.helper:  # a helper is never held for another rank
        return None
    if others == "run":
        agent.coordination.run_past(_stop_info(site, "held", chosen, "breakpoint", until_go))
        return None
    return _stop(frame, site, "held", chosen, "breakpoint", until_go=until_go)


def _stop_info(site: BreakpointSite, role: str, stoppers: RankSet, reason: str, until_go: bool) -> StopInfo:
    from breakranks.rank.stop_state import StopInfo  # imported with the agent, not before

    return StopInfo(
        site=site.name, count=site.calls + 1, role=role, stoppers=stoppers, reason=reason, until_go=until_go
    )


def _stop(
    frame: FrameType, site: BreakpointSite, role: str, stoppers: RankSet, reason: str, *, until_go: bool
) -> RankPdb | None:
    with fork_hooks.ForksPaused():
        from breakranks.rank import stop_notice, thread_location  # needed where a rank stops, and only there

    agent = _agent
    if agent is None:
        return None
    stop = _stop_info(site, role, stoppers, reason, until_go)
    stop.where = thread_location.place(frame)
    stop_notice.announce(agent, stop)
    pdb = agent.pdbs.mine()
    pdb.stop_at(frame, stop)
    return pdb if agent.stop_state.tracing else None


def _say_off(site: BreakpointSite, me: rank_identity.RankIdentity) -> None:
    global _said_off
    if not _said_off and me.local_rank == 0:
        rank_output.say(
            f"did not stop at {site.name}: breakpoints have been off since the console left; "
            "`breakranks console` turns them on"
        )
    _said_off = True


def _install_hook(chosen: RankSet) -> None:
    before = sys.excepthook
    if getattr(before, "breakranks", False):
        return

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> Any:
        before(kind, error, trace)
        agent = _agent
        stream = rank_output.unbuffered_stderr()
        if stream is not sys.stderr and stream is not None:
            # torch prints its buffer only after the hook, which is after the stop.
            traceback.print_exception(kind, error, trace, file=stream)
        if agent is None or trace is None or issubclass(kind, KeyboardInterrupt) or agent.me.rank not in chosen:
            return
        _keep(agent, trace, _error_text(error))

    marked: Callable[..., Any] = hook
    marked.breakranks = True  # type: ignore[attr-defined]
    sys.excepthook = hook


def _error_text(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:500]
    except Exception:
        return type(error).__name__


def _keep(agent: RankAgent, trace: TracebackType, error: str) -> None:
    """Stop a rank where it crashed, and hold the other ranks."""
    with fork_hooks.ForksPaused():
        from breakranks.rank import stop_notice, thread_location  # as in _stop
        from breakranks.rank.stop_state import StopInfo  # as in _stop_info

    agent.coordination.read_news()
    if agent.coordination.off or agent.stop_state.sits():
        return
    mine = RankSet([agent.me.rank])
    others = RankSet.span(0, agent.me.world) - mine
    reason = f"crashed: {error}" if error else "crashed"
    stop = StopInfo(
        site="",
        count=0,
        role="prompt",
        stoppers=mine,
        reason=reason,
        crashed=True,
        exception=error,
        holds=others,
    )
    innermost = trace
    while innermost.tb_next is not None:
        innermost = innermost.tb_next
    stop.where = thread_location.place(innermost.tb_frame)
    stop_notice.announce(agent, stop)
    agent.pdbs.mine().post_mortem(trace, stop)


for _function in (breakpoint, hold, go, post_mortem):
    setattr(_function, "_torchdynamo_disable", True)  # noqa: B010  # torch.compile breaks its graph here silently
