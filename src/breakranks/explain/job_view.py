"""Everything that the rules may ask, worked out once: looks, who waits for whom, how long."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from breakranks.explain import wait_chains
from breakranks.explain.activity import ActivityReader
from breakranks.explain.collectives import call_facts
from breakranks.explain.collectives.progress import CollectiveProgress, PendingCall
from breakranks.explain.frame_meanings import PEER, FrameTable
from breakranks.explain.process_view import ProcessView, evidence_key, helpers_key, look
from breakranks.explain.values import CallName, Subject
from breakranks.rankset import RankSet
from breakranks.snapshot.code_owner import innermost_installed
from breakranks.snapshot.model import FileLock, Frame, Process, Rank, Snapshot, family
from breakranks.snapshot.own_threads import without_agents

_SPAN_SECONDS = 0.4
_IDLE_SHARE = 0.05
# Seconds that may pass between a sample and the recorders that are read with it.
_READ_SKEW_SECONDS = 0.3
# Collectives that leave no record: gloo's monitored_barrier, waits for work that may be anything, other libraries.
_NOT_RECORDED = frozenset({"monitored_barrier", "wait", "a collective", ""})
HELD_BY_RANK = "held-by-rank"
# Folders of which each host has its own.
_LOCAL = ("/tmp/", "/var/", "/dev/", "/run/", "/proc/", "/sys/")


class RankGroup(NamedTuple):
    """Ranks that do the same thing in the same place, and the ranks that they wait for.

    ``reason`` says by what they wait: an activity of ``PEER``, or a lock that another rank holds. ``call`` is what
    their flight recorders say of it. ``exact``: ``waits`` are just those that have not come, and no guess.
    """

    ranks: RankSet
    waits: RankSet
    reason: str
    op: CallName
    where: Frame | None
    look: ProcessView
    call: PendingCall | None = None
    exact: bool = False

    @property
    def is_waiting(self) -> bool:
        """Whether these wait for ranks: others, or, when all are in one place, each other."""
        return bool(self.waits) or self.reason in PEER


class JobView:
    """One snapshot, prepared for the rules."""

    def __init__(self, snapshot: Snapshot, table: FrameTable | None = None) -> None:
        snapshot = without_agents(snapshot)
        self.snapshot = snapshot
        self.reader = ActivityReader(snapshot, table)
        self.ranks: dict[int, Rank] = {rank.rank: rank for rank in snapshot.ranks}
        self.spoke = wait_chains.spoken(snapshot)
        self.looks = _looks(snapshot, self.reader)
        self.seen = RankSet(self.ranks)
        self.gone = RankSet.parse(",".join(m.ranks for m in snapshot.missing if m.reason in ("exited", "absent")))
        self.unreached = RankSet.parse(",".join(m.ranks for m in snapshot.missing if m.reason == "unreachable"))
        self.unreached -= self.seen
        self.several = snapshot.remote_ranks
        self.unseen = RankSet.parse(",".join(m.ranks for m in snapshot.missing)) - self.seen
        self.dead = RankSet(r for r, one in self.looks.items() if one.state in ("Z", "X"))
        # A pid tells processes of one host apart, not of two.
        self.by_pid = {
            (rank.host, process.pid): rank.rank
            for rank in snapshot.ranks
            for process in family(rank.process)
            if process.pid
        }
        self._openers: dict[str, int | None] = {}
        self._on: dict[str, list[int]] | None = None
        self._owners = {id(one): rank.rank for rank in snapshot.ranks for one in family(rank.process)}
        self.ledger = CollectiveProgress(snapshot)
        self.calls = self._calls()
        self._came_out()
        self._called_since()
        self.nodes = self._apart(_without_gpu_waits(self._nodes()))

    @property
    def world(self) -> RankSet:
        return self.seen | self.gone | self.unreached

    def rank_of(self, process: Process) -> int | None:
        """The rank that a process of this snapshot is, or works for."""
        return self._owners.get(id(process))

    def host_of(self, process: Process) -> str:
        """The host that a process is on, where there are several; else nothing need be said."""
        rank = self.rank_of(process)
        return self.ranks[rank].host if rank is not None and self.several else ""

    def hosts_of(self, ranks: RankSet) -> list[str]:
        """The hosts that have these ranks, in the order of ranks."""
        if len(ranks) * 4 < len(self.ranks):
            return list(dict.fromkeys(self.ranks[rank].host for rank in ranks if rank in self.ranks))
        return list(dict.fromkeys(one.host for one in self.snapshot.ranks if one.rank in ranks))

    def ranks_on(self, host: str) -> list[int]:
        """All ranks of a host that were seen."""
        if self._on is None:
            self._on = {}
            for one in self.snapshot.ranks:
                self._on.setdefault(one.host, []).append(one.rank)
        return self._on.get(host, [])

    def last_seen(self, rank: int) -> float:
        """When a rank was looked at last: hosts do not all look at the same moment."""
        samples = self.ranks[rank].process.samples
        return samples[-1].time if samples else self.snapshot.time

    def look_of(self, ranks: RankSet) -> ProcessView:
        return self.looks[ranks.first]

    def subject(self, ranks: RankSet) -> Subject:
        """Who these are: with host and pid, the host only where there are several."""
        if len(ranks) != 1:
            hosts = self.hosts_of(ranks) if self.several and ranks != self.seen else []
            whole = len(hosts) == 1 and len(ranks) == len(self.ranks_on(hosts[0]))
            return Subject(ranks=str(ranks), hosts=tuple(hosts), whole_host=whole)
        rank = self.ranks.get(ranks.first)
        if rank is None:
            return Subject(ranks=str(ranks))
        return Subject(ranks=str(ranks), host=rank.host if self.several else "", pid=rank.process.pid)

    def stands(self, ranks: RankSet) -> float:
        """For how long at least one of these has been where it is."""
        return max((self.looks[rank].stands for rank in ranks if rank in self.looks), default=0.0)

    def asleep(self, ranks: RankSet | None = None) -> bool:
        """Whether no process of these ranks did anything between the first look and the last.

        Then nothing inside the job will change what is seen; a timer, a GPU or something outside might.
        """
        chosen = self.seen if ranks is None else ranks
        if any(self.looks[rank].activity.word == "gpu-wait" for rank in chosen):
            return False
        return all(_is_idle(process) for rank in chosen for process in family(self.ranks[rank].process))

    def lock_holder(self, one: ProcessView) -> tuple[FileLock | None, int | None]:
        """The lock that a rank waits for, and the rank that holds it, if one does."""
        if one.activity.word != "file-lock":
            return None, None
        for lock in one.process.locks:
            if lock.kind == "gone":
                continue
            mine = self.rank_of(one.process)
            host = self.ranks[mine].host if mine is not None else ""
            if lock.holder:
                holder = self.by_pid.get((host, lock.holder))
            else:
                holder = self._holds_elsewhere(lock.path, host)
            return lock, holder if holder != mine else None
        return None, None

    def _holds_elsewhere(self, path: str, host: str) -> int | None:
        """The rank of another host that has a file open which nobody here has: disks are shared."""
        if not self.several or is_local(path):
            return None
        if path not in self._openers:
            self._openers[path] = next(
                (
                    rank.rank
                    for rank in self.snapshot.ranks
                    if rank.host != host
                    for one in family(rank.process)
                    if any(file.path == path for file in one.files)
                ),
                None,
            )
        return self._openers[path]

    def _nodes(self) -> list[RankGroup]:
        # Ranks with equal evidence share one Look, so that keys are made once for each of those.
        shared: dict[tuple[object, object], list[int]] = {}
        for rank, one in self.looks.items():
            call = self.calls.get(rank)
            shared.setdefault((id(one), call and (call.group, call.entry.number)), []).append(rank)
        groups: dict[object, list[int]] = {}
        for (_, number), ranks in shared.items():
            groups.setdefault((self._key(self.looks[ranks[0]]), number), []).extend(ranks)
        return [self._node(RankSet(ranks)) for ranks in groups.values()]

    def _apart(self, nodes: list[RankGroup]) -> list[RankGroup]:
        """Where ranks that do different things stand at the same line of the user's code (``trainer.fit()``),
        say where they are in the installed code below it: there their ways part."""
        counts: dict[object, int] = {}
        for node in nodes:
            counts[node.where] = counts.get(node.where, 0) + 1
        return [node if counts[node.where] == 1 else self._inner(node) for node in nodes]

    def _inner(self, node: RankGroup) -> RankGroup:
        one = node.look
        frame = innermost_installed(self.snapshot.stack(one.thread.stack)) if one.thread is not None else None
        if frame is None:
            return node
        deeper = one._replace(activity=one.activity._replace(where=frame))
        for rank in node.ranks:
            self.looks[rank] = deeper
        return node._replace(where=frame, look=deeper)

    def _key(self, one: ProcessView) -> object:
        where = one.where
        place = (where.function, where.file, where.line) if where is not None else None
        peer = self.peer(one)
        _, holder = self.lock_holder(one)
        shared = (one.state in "TtZX", one.activity.word, one.activity.op, place, peer, holder, one.activity.about)
        if one.activity.word in PEER:
            return shared
        # What a rank that waits for no rank does is judged with its helpers and its motion.
        return *shared, one.moved, one.still, helpers_key(one.process), wait_chains.key(one.process)

    def _node(self, ranks: RankSet) -> RankGroup:
        one = self.look_of(ranks)
        activity = one.activity
        waits = RankSet()
        reason = activity.word
        call = self.calls.get(ranks.first)
        if one.state in ("T", "t", "Z", "X"):
            reason = "stopped"
        elif call is not None:
            exact = self.ledger.group(call.group).source != "seen"
            return RankGroup(
                ranks=ranks,
                waits=self._others(call),
                reason=reason,
                op=call_facts.call(self.ledger, call),
                where=activity.where,
                look=one,
                call=call,
                exact=exact,
            )
        elif activity.word == "gpu-wait" and ranks <= self.ledger.known:
            reason = "gpu"  # no collective of its is under way, so it waits for its own GPU
        elif activity.word == "p2p":
            peer = self.peer(one)
            known = peer is not None and peer in self.world
            waits = RankSet([peer]) if peer is not None and known else self.world - ranks
            return RankGroup(
                ranks=ranks,
                waits=waits,
                reason=reason,
                op=CallName(operation=activity.op),
                where=activity.where,
                look=one,
                exact=known,
            )
        elif activity.word in PEER:
            waits = self.world - ranks
        elif activity.word == "held":
            # For ranks at a prompt; if there are none here, it is they whom a person must let go.
            asked = RankSet(rank for rank, other in self.looks.items() if other.activity.word == "prompt")
            return RankGroup(
                ranks=ranks,
                waits=asked - ranks,
                reason=reason,
                op=CallName(operation=activity.op),
                where=activity.where,
                look=one,
                exact=True,
            )
        elif activity.word == "file-lock":
            _, holder = self.lock_holder(one)
            if holder is not None and holder not in ranks:
                return RankGroup(
                    ranks=ranks,
                    waits=RankSet([holder]),
                    reason=HELD_BY_RANK,
                    op=CallName(operation=activity.op),
                    where=activity.where,
                    look=one,
                    exact=True,
                )
        op = CallName(operation=activity.op)
        return RankGroup(ranks=ranks, waits=waits, reason=reason, op=op, where=activity.where, look=one)

    def _calls(self) -> dict[int, PendingCall]:
        """The pending call that each rank stands in, by its recorder; not of ranks that have moved since."""
        found = {}
        for rank, waits in self.ledger.waits.items():
            one = self.looks.get(rank)
            if one is None or one.activity.word not in ("collective", "gpu-wait") or one.state in "TtZX":
                continue
            read = self.ledger.recorders[rank].time
            now = self.last_seen(rank)
            if one.stands + _READ_SKEW_SECONDS < now - read:
                continue
            tid = self._tid(rank, one)
            its = [wait for wait in waits if not tid or wait.entry.thread in (0, tid)]
            if not its:
                continue  # other threads of the rank have calls under way; this one has come out meanwhile
            mine = _of_stack(self.ledger, its, one)
            found[rank] = mine or next((wait for wait in its if wait.others), its[0])
            if mine is not None and mine.entry.created:
                # It has stood there since it called: what woke it meanwhile may have been us, and if it was at the same
                # line before, that was another round.
                self.looks[rank] = one._replace(stands=max(0.0, now - mine.entry.created))
        return found

    def read_since(self, ranks: RankSet, moment: float) -> bool:
        """Whether what the recorders of these ranks say, where they have one, is younger than a moment."""
        known = self.ledger.recorders
        return all(known[rank].time > moment + _READ_SKEW_SECONDS for rank in ranks if rank in known)

    def _tid(self, rank: int, one: ProcessView) -> int:
        """The id of the thread that a look is about, in this rank: ranks that do the same share one look."""
        if one.thread is None:
            return 0
        process = self.ranks[rank].process
        if one.thread.tid == one.process.pid:
            return process.pid
        threads = process.samples[-1].threads if process.samples else ()
        return next((thread.tid for thread in threads if thread.name == one.thread.name), 0)

    def _came_out(self) -> None:
        """A rank whose stack was in a recorded call, and whose recorder has none pending a moment later, moves."""
        for rank in self.ledger.known - RankSet(self.calls) - self.ledger.stale:
            one = self.looks.get(rank)
            if one is None or one.activity.word != "collective" or one.activity.op in _NOT_RECORDED:
                continue
            if self.ledger.recorders[rank].time >= self.last_seen(rank) and self.ledger.recorders[rank].tracks:
                self.looks[rank] = one._replace(stands=0.0, moved=True, moves=max(1, one.moves))

    def _called_since(self) -> None:
        """A rank that has made a call while it was watched has moved, whatever its stack looks like at each look."""
        for rank, recorder in self.ledger.recorders.items():
            one = self.looks.get(rank)
            if one is None or one.thread is None or not one.process.samples:
                continue
            tids = (self.ranks[rank].process.pid, self._tid(rank, one) or -1)
            made = max((t.last.created for t in recorder.tracks if t.last and t.last.thread in tids), default=0.0)
            if made > one.process.samples[0].time:
                stands = min(one.stands, max(0.0, self.last_seen(rank) - made))
                self.looks[rank] = one._replace(stands=stands, moved=True, moves=max(1, one.moves))

    def _others(self, call: PendingCall) -> RankSet:
        """Those that a call waits for. Where a recorder could not be read, the stack says whether it came; but one that
        is stopped does not get on in it either."""
        unknown = RankSet(
            rank
            for rank in call.unknown & self.world
            if rank not in self.looks
            or self.looks[rank].activity.word != "collective"
            or self.looks[rank].state in "TtZX"
        )
        return (call.absent or unknown or call.elsewhere) & self.world

    def awaited(self) -> RankSet | None:
        """The ranks that somebody waits for; None where that is not known exactly."""
        found = RankSet()
        for node in self.waiting():
            if not node.exact:
                return None
            found |= node.waits
        return found

    def victims_of(self, culprits: RankSet) -> RankSet:
        """The ranks that wait for these, in however many steps."""
        nodes = self.waiting()
        found = culprits
        while nodes:
            more = [node for node in nodes if not node.exact or node.waits & found]
            if not more:
                break
            for node in more:
                found |= node.ranks
            nodes = [node for node in nodes if node not in more]
        return found - culprits

    @staticmethod
    def peer(one: ProcessView) -> int | None:
        """The rank at the other end of a send or recv, from its own arguments."""
        if one.activity.word != "p2p" or one.thread is None:
            return None
        for function in ("recv", "send", "recv_object_list", "send_object_list"):
            for name in ("src", "dst", "group_src", "group_dst"):
                text = one.thread.hints.get(f"{function}.{name}", "")
                if text.isdigit():
                    return int(text)
        return None

    def roots(self) -> Iterator[RankGroup]:
        """Nodes that wait for no rank."""
        for node in self.nodes:
            if not node.is_waiting:
                yield node

    def waiting(self) -> list[RankGroup]:
        return [node for node in self.nodes if node.is_waiting]


def is_local(path: str) -> bool:
    """Whether each host has a file of its own by this name."""
    return path.startswith(_LOCAL)


def _of_stack(ledger: CollectiveProgress, waits: list[PendingCall], one: ProcessView) -> PendingCall | None:
    """Which of a rank's pending calls its thread stands in: its own newest of that name."""
    mine = [wait for wait in waits if one.thread is not None and ledger.name(wait.entry.operation) == one.activity.op]
    return max(mine, key=lambda wait: wait.entry.record, default=None)


def _without_gpu_waits(nodes: list[RankGroup]) -> list[RankGroup]:
    """A rank that waits for its GPU may wait for other ranks there, in a collective that the GPU runs. But where
    others are in a collective on the CPU, it is simply one that has not come."""
    if not any(node.reason in PEER and node.reason != "gpu-wait" for node in nodes):
        return nodes
    return [
        node._replace(reason="gpu", waits=RankSet()) if node.reason == "gpu-wait" and node.call is None else node
        for node in nodes
    ]


def _is_idle(process: Process) -> bool:
    """No more than what gloo's thread uses that looks a hundred times a second; in two samples at least."""
    samples = process.samples
    if len(samples) < 2:
        return process.state in ("T", "t", "Z", "X")
    span = samples[-1].time - samples[0].time
    return span >= _SPAN_SECONDS and samples[-1].cpu - samples[0].cpu <= max(0.02, _IDLE_SHARE * span)


def _looks(snapshot: Snapshot, reader: ActivityReader) -> dict[int, ProcessView]:
    """A look at every rank. Ranks whose evidence is the same share one: the cost of explaining grows with
    the number of different stacks, not with ranks."""
    known: dict[object, ProcessView] = {}
    keys: dict[int, object] = {}
    for rank in snapshot.ranks:
        # Who holds a lock is said by a pid, and that is another process on another host.
        key: object = (evidence_key(rank.process), rank.host if rank.process.locks else "")
        keys[rank.rank] = key
        if key not in known:
            known[key] = look(snapshot, reader, rank.process)
    # Where some ranks do their collectives in a thread of its own, it is that thread of the others that matters.
    names = frozenset(
        one.thread.name
        for one in known.values()
        if one.thread is not None and one.via is not None and one.activity.word in PEER
    )
    if names:
        for key, one in known.items():
            if one.activity.word not in PEER:
                known[key] = look(snapshot, reader, one.process, names)
    return {rank: known[key] for rank, key in keys.items()}
