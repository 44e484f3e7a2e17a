"""Looking at the other ranks: what is told them of this one, and when it need not wait for them any longer."""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from breakranks.rank import rank_output, run_dir, shared_state, stop_notice
from breakranks.rank.breakpoint_sites import SITES
from breakranks.rank.rank_identity import is_here
from breakranks.rank.remote_store import RemoteStore
from breakranks.rank.stop_state import GONE, StopInfo
from breakranks.rankset import RankSet, ranks_text

if TYPE_CHECKING:
    from breakranks.rank.agent import RankAgent
    from breakranks.rank.unix_server import Client

IDLE_SECONDS, WATCHFUL_SECONDS, STOPPED_SECONDS = 1.0, 0.5, 0.1  # seconds between two looks
_BEAT_SECONDS = 1.0
_FAREWELL_SECONDS = 1.0
_LOST_SECONDS = 3.0  # seconds after which a rank that was never seen is looked for
_NEVER_CAME_SECONDS = 60.0  # a rank that runs on keeps its timeouts long for a stop that nobody has come to


class Coordination:
    """What one agent knows of the others. ``off``: breakpoints do not stop, the last console has left for good."""

    def __init__(self, agent: RankAgent) -> None:
        self._agent = agent
        self.off = False
        self.visited = False  # a client of the Debug Adapter Protocol is in this rank
        self._patient: list[Client] = []  # consoles that have such a client in some rank
        self.stores = shared_state.StateStores([shared_state.FolderStore(agent.path, same_host=True)])
        self._far: RemoteStore | None = None
        self._start = run_dir.started(agent.pid)
        self._beats = 0
        self._beaten = 0.0
        self._published: dict[str, Any] = {}
        self._told: dict[str, int] = {}  # of each site, up to which call somebody has said go
        self._absent: dict[int, float] = {}  # ranks that are awaited and were never seen, since when
        self._lock = threading.RLock()  # the stopping thread and the agent's both read and publish
        self._passing: tuple[StopInfo, float] | None = None  # a stop that this rank ran past, and until when it counts

    # ---- from the job's threads

    def meet(self) -> None:
        """Find the places where ranks of other hosts can be met; the store may come into being late."""
        me = self._agent.me
        if self._far or not me.hosts or me.helper:
            return
        remote_ranks = shared_state.store_of_torch() or shared_state.shared_folder(me.job)
        if remote_ranks is not None:
            self._far = RemoteStore(remote_ranks, from_now=self._agent.attached)
            self.stores = shared_state.StateStores(
                [shared_state.FolderStore(self._agent.path, same_host=True), self._far]
            )

    @property
    def alone(self) -> bool:
        """Whether the job has hosts that this one cannot tell anything."""
        return self._agent.me.hosts and self._far is None

    def end(self) -> None:
        """Tell the others that this rank comes nowhere any more."""
        self.publish(ended=True)
        if self._far is not None:
            self._far.end(_FAREWELL_SECONDS)

    def run_past(self, stop: StopInfo) -> None:
        """This rank runs on while others stop: its timeouts are long until they have gone on."""
        self._passing = (stop, time.monotonic() + _NEVER_CAME_SECONDS)  # first: the agent puts back what nobody needs
        self._agent.timeouts.extend()

    def visit(self, here: bool) -> None:
        """A client of the Debug Adapter Protocol has come, or gone: it may stop this rank without a word to us."""
        self.visited = here
        self.publish()
        if here:
            self._agent.timeouts.extend()

    def be_patient(self, client: Client, needed: bool) -> list[str]:
        """A console wants long timeouts here, as long as it is there or until it says otherwise. What stays short."""
        self._patient = [one for one in self._patient if one is not client]
        if not needed:
            return []
        self._patient.append(client)
        return self._agent.timeouts.extend()

    @property
    def _debugging(self) -> bool:
        return self.visited or self._agent.stop_state.debugging

    def announce(self, record: dict[str, Any]) -> None:
        """Tell all ranks: go, off, on, hold. Whose it is and when makes two of the same two."""
        self.stores.append({**record, "by": self._agent.me.rank, "at": time.time()})

    def publish(self, *, ended: bool = False) -> None:
        """Put up what this rank is at; ``ended``: that it will not come anywhere any more."""
        if not self._agent.here:  # a forked child: it is its parent's
            return
        with self._lock:  # made and put up in one: else an older entry could come after a newer one, and stay
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
        stop = stop_state.stop  # the other thread may take it away meanwhile
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
            "origin": list(stop_state.origin) if stop_state.debugging else [],  # a visit keeps nobody held
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
            self.publish()  # the counts: somebody may hold for this rank
        if self._agent.console is not None and self._agent.console.ended():
            self._agent.console = None
            left = stop_state.stop
            if left is not None and not self._agent.watched and not self.off:
                stop_notice.say(self._agent, left)  # it ended before it came to us
        stop = stop_state.stop
        if stop is not None:
            if not stop.spoken and stop.count:
                stop_notice.announce_late(self._agent, stop, now)
            reason = self._may_go(stop, now)
            if reason:
                stop_state.release(reason)
        self._patient = [one for one in self._patient if one in self._agent.server.clients]
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
        """What was said since; called before a stop as well, so that what is read later was said of it."""
        with self._lock:
            records = self.stores.news()
            words = [record.get("do") for record in records]
            if "on" in words:  # somebody has come since: what was off before is over
                last = len(words) - 1 - words[::-1].index("on")
                records = [one for at, one in enumerate(records) if at >= last or one.get("do") != "off"]
            for record in records:
                try:
                    self._read(record)
                except Exception as error:  # another version's, or nobody's: the rest still counts
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
        # It may have been long under way: who has come to a later call meanwhile is not meant.
        if stop is not None and counts.get(stop.site, stop.count) >= stop.count:
            self._agent.stop_state.release(f"rank {record.get('by')} said go")

    def _may_go(self, stop: StopInfo, now: float) -> str:
        """Why a stopped rank should not wait any longer, or nothing."""
        limit = _limit()
        if limit and not self._agent.watched and now - stop.began > limit:
            return f"nobody came in {limit:.0f} s (BREAKRANKS_WAIT)"
        if self.off and not self._agent.watched:
            return GONE
        if stop.role != "held" or self._agent.me.rank in stop.stoppers:
            return ""
        if stop.until_go and self._told.get(stop.site, 0) >= stop.count:
            return "somebody said go before"
        return self._passed(stop)

    def _passed(self, stop: StopInfo) -> str:
        """Whether every rank that this one holds for has gone on from the same call, or is dead: how it is said."""
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
        return f"{ranks_text(dead)} has ended" if dead else f"{ranks_text(stop.stoppers)} went on"

    def _never(self, rank: int) -> bool:
        """Whether a rank that was never seen has no process on this host any more."""
        since = self._absent.setdefault(rank, time.monotonic())
        if self._agent.me.hosts or time.monotonic() - since < _LOST_SECONDS:
            return False
        self._absent[rank] = time.monotonic()  # a look at all processes, now and then
        return is_here(rank) is False


def _limit() -> float:
    """Seconds after which a stop that nobody has come to goes on; 0 for never."""
    try:
        return max(float(os.environ.get("BREAKRANKS_WAIT", "0")), 0.0)
    except ValueError:
        return 0.0
