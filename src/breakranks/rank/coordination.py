"""Coordination of the ranks: what this rank publishes of itself, and when it need not wait for others any longer."""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from breakranks.rank import rank_output, run_dir, shared_state, stop_notice
from breakranks.rank.breakpoint_calls import SITES
from breakranks.rank.rank_identity import is_here
from breakranks.rank.remote_store import RemoteStore
from breakranks.rank.stop_state import GONE, StopInfo
from breakranks.rankset import RankSet, ranks_text

if TYPE_CHECKING:
    from breakranks.rank.agent import RankAgent
    from breakranks.rank.unix_server import Client

IDLE_SECONDS, WATCHFUL_SECONDS, STOPPED_SECONDS = 1.0, 0.5, 0.1  # between two readings of the state store
_BEAT_SECONDS = 1.0
_FAREWELL_SECONDS = 1.0
_LOST_SECONDS = 3.0  # after which /proc is searched for a rank that has published nothing
_NEVER_CAME_SECONDS = 60.0  # for which a rank that runs past a stop keeps its timeouts long, if no rank stops there


class Coordination:
    """What one agent knows of the other ranks. ``off``: breakpoints do not stop, because the last console has left."""

    def __init__(self, agent: RankAgent) -> None:
        self._agent = agent
        self.off = False
        self.visited = False  # a client of the Debug Adapter Protocol is attached to this rank
        self._patient: list[Client] = []  # consoles that have such a client in some rank and need long timeouts
        self.stores = shared_state.StateStores([shared_state.FolderStore(agent.path, same_host=True)])
        self._far: RemoteStore | None = None
        self._start = run_dir.started(agent.pid)
        self._beats = 0
        self._beaten = 0.0
        self._published: dict[str, Any] = {}
        self._told: dict[str, int] = {}  # by site, the last call that `go` has released
        self._absent: dict[int, float] = {}  # by awaited rank that has published nothing, since when it is awaited
        self._lock = threading.RLock()  # the stopping thread and the agent's both read and publish
        self._passing: tuple[StopInfo, float] | None = None  # a stop that this rank ran past, and when that expires

    # ---- from the job's threads

    def meet(self) -> None:
        """Find the store that is shared with other hosts. The job may create it late."""
        me = self._agent.me
        if self._far or not me.hosts or me.helper:
            return
        shared = shared_state.store_of_torch() or shared_state.shared_folder(me.job)
        if shared is not None:
            self._far = RemoteStore(shared, from_now=self._agent.attached)
            self.stores = shared_state.StateStores(
                [shared_state.FolderStore(self._agent.path, same_host=True), self._far]
            )

    @property
    def alone(self) -> bool:
        """Whether the job has other hosts and no store that is shared with them."""
        return self._agent.me.hosts and self._far is None

    def end(self) -> None:
        """Publish that this rank reaches no line any more."""
        self.publish(ended=True)
        if self._far is not None:
            self._far.end(_FAREWELL_SECONDS)

    def run_past(self, stop: StopInfo) -> None:
        """Extend the timeouts of this rank, which runs past a stop, until the ranks that stop there have resumed."""
        # Set before extending: the agent restores timeouts that nothing needs.
        self._passing = (stop, time.monotonic() + _NEVER_CAME_SECONDS)
        self._agent.timeouts.extend()

    def visit(self, here: bool) -> None:
        """Record that a DAP client has attached or left. It may stop this rank without the agent."""
        self.visited = here
        self.publish()
        if here:
            self._agent.timeouts.extend()

    def be_patient(self, client: Client, needed: bool) -> list[str]:
        """Keep timeouts long while this console is connected, or until it withdraws. Return notes on the rest."""
        self._patient = [other for other in self._patient if other is not client]
        if not needed:
            return []
        self._patient.append(client)
        return self._agent.timeouts.extend()

    @property
    def _debugging(self) -> bool:
        return self.visited or self._agent.stop_state.debugging

    def announce(self, record: dict[str, Any]) -> None:
        """Send go, off, on or hold to all ranks. The rank and the time tell two equal records apart."""
        self.stores.append({**record, "by": self._agent.me.rank, "at": time.time()})

    def publish(self, *, ended: bool = False) -> None:
        """Publish the entry of this rank. ``ended``: it will reach no line any more."""
        if not self._agent.here:  # a forked child: the entry is its parent's
            return
        with self._lock:  # made and published together: else an older entry could replace a newer one
            entry = self._entry(ended)
            if entry == self._published:
                return
            self._published = entry
            if not self._agent.me.helper:
                self.stores.publish(self._agent.me.rank, entry)
                return
            try:
                run_dir.write(f"{self._agent.path}/{self._agent.name}.json", entry)
            except OSError as error:
                self.stores.lost = str(error)

    def _entry(self, ended: bool) -> dict[str, Any]:
        agent, me, stop_state = self._agent, self._agent.me, self._agent.stop_state
        stop = stop_state.stop  # read once: the other thread may reset it
        return {
            "rank": me.rank,
            "pid": agent.pid,
            "start": self._start,
            "host": me.host,
            "world": me.world,
            "job": me.job,
            "socket": f"{agent.pid}.sock",
            "helper": me.helper,
            "beat": self._beats,
            "debugging": self._debugging,
            "role": stop.role if stop is not None else "",
            "origin": list(stop_state.origin) if stop_state.debugging else [],  # a DAP client keeps no rank held
            "counts": SITES.counts(),
            "stderr": rank_output.standard_error(),
            "program": os.path.basename(sys.argv[0]) if sys.argv else "",
            "where": stop.where if stop is not None else {},
            "ended": ended,
        }

    # ---- from the agent's thread

    @property
    def pause(self) -> float:
        if self._agent.stop_state.stop is not None:
            return STOPPED_SECONDS
        return WATCHFUL_SECONDS if self._agent.stop_state.tracing or self._agent.timeouts.extended else IDLE_SECONDS

    def look(self, now: float) -> None:
        stop_state = self._agent.stop_state
        if self._debugging and now - self._beaten > _BEAT_SECONDS:
            self._beaten = now
            self._beats += 1
            self.stores.beat()
            self.publish()
        self.read_news()
        busy = self.stores.busy()
        if busy and not stop_state.debugging:
            self.publish()  # the counts: another rank may be held for this one
        if self._agent.console is not None and self._agent.console.ended():
            self._agent.console = None
            unmet = stop_state.stop
            if unmet is not None and not self._agent.watched and not self.off:
                stop_notice.say(self._agent, unmet)  # the console ended before it connected
        stop = stop_state.stop
        if stop is not None:
            if not stop.announced and stop.count:
                stop_notice.announce_late(self._agent, stop, now)
            reason = self._may_go(stop, now)
            if reason:
                stop_state.release(reason)
        self._patient = [client for client in self._patient if client in self._agent.server.clients]
        self._keep_timeouts(busy or self._debugging or bool(self._patient), now)

    def _keep_timeouts(self, needed: bool, now: float) -> None:
        if self._passing is not None:
            stop, until = self._passing
            if self._passed(stop) or (not needed and now > until):
                self._passing = None
        if needed or self._passing is not None:
            if self._agent.timeouts.extended:
                self._agent.timeouts.refresh()
            else:
                self._agent.timeouts.extend()
        elif self._agent.timeouts.extended:
            self._agent.timeouts.restore()

    def read_news(self) -> None:
        """Read new records. Also called before a stop, so that records read later are known to be about it."""
        with self._lock:
            records = self.stores.news()
            words = [record.get("do") for record in records]
            if "on" in words:  # a console has connected since: an earlier "off" is void
                last = len(words) - 1 - words[::-1].index("on")
                records = [record for at, record in enumerate(records) if at >= last or record.get("do") != "off"]
            for record in records:
                try:
                    self._read(record)
                except Exception as error:  # of another version, or damaged: the other records still count
                    self.stores.lost = repr(error)

    def _read(self, record: dict[str, Any]) -> None:
        match record.get("do"):
            case "off":
                self.off = not self._agent.watched
                if self.off:
                    self._agent.stop_state.release(GONE)
            case "on":
                self.off = False
            case "go" if self._agent.me.rank in RankSet.parse(str(record.get("ranks", ""))):
                self._go(record)
            case "hold" if self._agent.me.rank in RankSet.parse(str(record.get("ranks", ""))):
                self._agent.breakpoints.stop_soon("held", RankSet([int(record["by"])]), str(record.get("reason", "")))

    def _go(self, record: dict[str, Any]) -> None:
        counts = {str(site): int(count) for site, count in dict(record.get("counts", {})).items()}
        for site, count in counts.items():
            self._told[site] = max(self._told.get(site, 0), count)
        stop = self._agent.stop_state.stop
        # A record may arrive late: it does not release a rank that has stopped at a later call since.
        if stop is not None and counts.get(stop.site, stop.count) >= stop.count:
            self._agent.stop_state.release(f"released by rank {record.get('by')}")

    def _may_go(self, stop: StopInfo, now: float) -> str:
        """Return why a stopped rank should not wait any longer, or an empty text."""
        limit = _limit()
        if limit and not self._agent.watched and now - stop.began > limit:
            return f"no console within {limit:.0f} s (BREAKRANKS_WAIT)"
        if self.off and not self._agent.watched:
            return GONE
        if stop.role != "held" or self._agent.me.rank in stop.stoppers:
            return ""
        if stop.until_go and self._told.get(stop.site, 0) >= stop.count:
            return "released before it stopped"
        return self._passed(stop)

    def _passed(self, stop: StopInfo) -> str:
        """Return a text if every rank that this one is held for has resumed from the same call or is dead."""
        dead = RankSet()
        for rank in stop.stoppers:
            entry = self.stores.entry(rank)
            if entry is None and not self._never(rank):
                return ""
            if entry is None or entry.get("dead"):
                dead |= RankSet([rank])
                continue
            if stop.until_go or not stop.count:
                if entry.get("debugging") or stop.until_go or rank == self._agent.me.rank:
                    return ""
                continue
            if int(entry.get("counts", {}).get(stop.site, 0)) < stop.count:
                return ""
            if entry.get("debugging") and entry.get("origin") == [stop.site, stop.count]:
                return ""
        return f"{ranks_text(dead)} has ended" if dead else f"{ranks_text(stop.stoppers)} resumed"

    def _never(self, rank: int) -> bool:
        """Return whether a rank that has published nothing has no process on this host."""
        since = self._absent.setdefault(rank, time.monotonic())
        if self._agent.me.hosts or time.monotonic() - since < _LOST_SECONDS:
            return False
        self._absent[rank] = time.monotonic()  # the search of all processes costs time: not each turn
        return is_here(rank) is False


def _limit() -> float:
    """Return the seconds after which a stop without a console resumes; 0 for never."""
    try:
        return max(float(os.environ.get("BREAKRANKS_WAIT", "0")), 0.0)
    except ValueError:
        return 0.0
