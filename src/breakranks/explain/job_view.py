"""Which rank waits for which, computed once for all rules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from breakranks.explain import wait_chains
from breakranks.explain.collectives import call_facts
from breakranks.explain.collectives.collective_progress import CollectiveProgress, PendingCall
from breakranks.explain.finding_parts import CallName
from breakranks.explain.frame_meanings import PEER, UNNAMED_COLLECTIVE, FrameTable
from breakranks.explain.process_view import ProcessView, helpers_key
from breakranks.explain.rank_views import RankViews
from breakranks.rankset import RankSet
from breakranks.snapshot.code_owner import innermost_installed
from breakranks.snapshot.model import Frame, Snapshot

# Seconds that may pass between a sample and the recorders that are read with it.
_READ_SKEW_SECONDS = 0.3
# Collectives that leave no record: gloo's monitored_barrier, a wait for unknown work, other libraries.
_NOT_RECORDED = frozenset({"monitored_barrier", "wait", UNNAMED_COLLECTIVE, ""})
HELD_BY_RANK = "held-by-rank"


class RankGroup(NamedTuple):
    """Ranks that do the same thing in the same place, and the ranks that they wait for.

    ``reason`` is what they wait in: an activity of ``PEER``, or a lock that another rank holds. ``call`` is what their
    flight recorders show. ``exact``: ``waits`` are exactly the ranks that have not arrived, not a guess.
    """

    ranks: RankSet
    waits: RankSet
    reason: str
    op: CallName
    where: Frame | None
    view: ProcessView
    call: PendingCall | None = None
    exact: bool = False

    @property
    def is_waiting(self) -> bool:
        """Whether these wait for ranks: for others or, if all ranks are in one place, for each other."""
        return bool(self.waits) or self.reason in PEER


class JobView(RankViews):
    """One snapshot, prepared for the rules: ranks in groups that wait for the same ranks."""

    def __init__(self, snapshot: Snapshot, table: FrameTable | None = None) -> None:
        super().__init__(snapshot, table)
        self.progress = CollectiveProgress(self.snapshot)
        self.calls = self._calls()
        self._mark_returned()
        self._mark_callers()
        self.nodes = self._with_inner_places(_without_gpu_waits(self._nodes()))

    def _nodes(self) -> list[RankGroup]:
        # Ranks with equal evidence share one ProcessView, so the key is computed once for each view.
        shared: dict[tuple[object, object], list[int]] = {}
        for rank, view in self.views.items():
            call = self.calls.get(rank)
            shared.setdefault((id(view), call and (call.group, call.entry.number)), []).append(rank)
        groups: dict[object, list[int]] = {}
        for (_, number), ranks in shared.items():
            groups.setdefault((self._key(self.views[ranks[0]]), number), []).extend(ranks)
        return [self._node(RankSet(ranks)) for ranks in groups.values()]

    def _with_inner_places(self, nodes: list[RankGroup]) -> list[RankGroup]:
        """Return the groups, with places in installed code where ranks that do different things are at the same line of
        the user's code (``trainer.fit()``)."""
        counts: dict[object, int] = {}
        for node in nodes:
            counts[node.where] = counts.get(node.where, 0) + 1
        return [node if counts[node.where] == 1 else self._inner(node) for node in nodes]

    def _inner(self, node: RankGroup) -> RankGroup:
        view = node.view
        frame = innermost_installed(self.snapshot.stack(view.thread.stack)) if view.thread is not None else None
        if frame is None:
            return node
        deeper = view._replace(activity=view.activity._replace(where=frame))
        for rank in node.ranks:
            self.views[rank] = deeper
        return node._replace(where=frame, view=deeper)

    def _key(self, view: ProcessView) -> object:
        where = view.where
        lock, holder = self.lock_holder(view)
        # Of ranks that poll for one lock file, one is seen at the test and another in the sleep.
        line = where.line if where is not None and lock is None else 0
        place = (where.function, where.file, line) if where is not None else None
        about = (view.activity.about, view.activity.peer) if lock is None else lock.path
        peer = self.peer(view)
        # A rank that has just been stopped takes another sample than one that has been stopped for long.
        ended = view.state in "TtZX" and [sample.state in "TtZX" for sample in view.process.samples[-2:]].count(True)
        shared = (ended, view.activity.word, view.activity.op, place, peer, holder, about)
        if view.activity.word in PEER:
            return shared
        # A rank that waits for no rank is explained with its helpers and its motion.
        return *shared, view.moved, view.still, helpers_key(view.process), wait_chains.key(view.process)

    def _node(self, ranks: RankSet) -> RankGroup:
        view = self.view_of(ranks)
        activity = view.activity
        waits = RankSet()
        reason = activity.word
        call = self.calls.get(ranks.first)
        if view.state in ("T", "t", "Z", "X"):
            reason = "stopped"
        elif call is not None:
            exact = self.progress.group(call.group).source != "seen"
            return RankGroup(
                ranks=ranks,
                waits=self._others(call),
                reason=reason,
                op=call_facts.call(self.progress, call),
                where=activity.where,
                view=view,
                call=call,
                exact=exact,
            )
        elif activity.word == "gpu-wait" and ranks <= self.progress.known:
            reason = "gpu"  # it has no collective under way, so it waits for its own GPU
        elif activity.word == "p2p":
            peer = self.peer(view)
            known = peer is not None and peer in self.world
            waits = RankSet([peer]) if peer is not None and known else self.world - ranks
            return RankGroup(
                ranks=ranks,
                waits=waits,
                reason=reason,
                op=CallName(operation=activity.op),
                where=activity.where,
                view=view,
                exact=known,
            )
        elif activity.word in PEER:
            waits = self.world - ranks
        elif activity.word == "held":
            # It waits for the ranks at a prompt; if there are none here, a user must release it.
            asked = RankSet(rank for rank, other in self.views.items() if other.activity.word == "prompt")
            return RankGroup(
                ranks=ranks,
                waits=asked - ranks,
                reason=reason,
                op=CallName(operation=activity.op),
                where=activity.where,
                view=view,
                exact=True,
            )
        elif activity.word == "file-lock":
            _, holder = self.lock_holder(view)
            if holder is not None and holder not in ranks:
                return RankGroup(
                    ranks=ranks,
                    waits=RankSet([holder]),
                    reason=HELD_BY_RANK,
                    op=CallName(operation=activity.op),
                    where=activity.where,
                    view=view,
                    exact=True,
                )
        op = CallName(operation=activity.op)
        return RankGroup(ranks=ranks, waits=waits, reason=reason, op=op, where=activity.where, view=view)

    def _calls(self) -> dict[int, PendingCall]:
        """Return the pending call that each rank is in, by its recorder, except for ranks that have moved since."""
        found = {}
        for rank, waits in self.progress.waits.items():
            view = self.views.get(rank)
            if view is None or view.activity.word not in ("collective", "gpu-wait") or view.state in "TtZX":
                continue
            read = self.progress.recorders[rank].time
            now = self.last_seen(rank)
            if view.stands + _READ_SKEW_SECONDS < now - read:
                continue
            tid = self._tid(rank, view)
            its = [wait for wait in waits if not tid or wait.entry.thread in (0, tid)]
            if not its:
                continue  # other threads of the rank have calls under way; this one has returned since
            mine = _of_stack(self.progress, its, view)
            found[rank] = mine or next((wait for wait in its if wait.others), its[0])
            if mine is not None and mine.entry.created:
                # It has been there since it made the call. It may have run since because a sample was taken, and if it
                # was at the same line before, that was an earlier call.
                self.views[rank] = view._replace(stands=max(0.0, now - mine.entry.created))
        return found

    def read_since(self, ranks: RankSet, moment: float) -> bool:
        """Whether the recorders of these ranks, where they have one, were read after a moment."""
        known = self.progress.recorders
        return all(known[rank].time > moment + _READ_SKEW_SECONDS for rank in ranks if rank in known)

    def _tid(self, rank: int, view: ProcessView) -> int:
        """Return the id, in this rank, of the thread that a view is about: ranks that do the same share one view."""
        if view.thread is None:
            return 0
        process = self.ranks[rank].process
        if view.thread.tid == view.process.pid:
            return process.pid
        threads = process.samples[-1].threads if process.samples else ()
        return next((thread.tid for thread in threads if thread.name == view.thread.name), 0)

    def _mark_returned(self) -> None:
        """Mark ranks as moving whose stack was in a recorded call, and whose recorder had no pending call a moment
        later."""
        for rank in self.progress.known - RankSet(self.calls) - self.progress.stale:
            view = self.views.get(rank)
            if view is None or view.activity.word != "collective" or view.activity.op in _NOT_RECORDED:
                continue
            if self.progress.recorders[rank].time >= self.last_seen(rank) and self.progress.recorders[rank].tracks:
                self.views[rank] = view._replace(stands=0.0, moved=True, moves=max(1, view.moves))

    def _mark_callers(self) -> None:
        """Mark ranks as moving that have made a call since the first sample, whatever their stacks look like."""
        for rank, recorder in self.progress.recorders.items():
            view = self.views.get(rank)
            if view is None or view.thread is None or not view.process.samples:
                continue
            tids = (self.ranks[rank].process.pid, self._tid(rank, view) or -1)
            made = max((t.last.created for t in recorder.tracks if t.last and t.last.thread in tids), default=0.0)
            if made > view.process.samples[0].time:
                stands = min(view.stands, max(0.0, self.last_seen(rank) - made))
                self.views[rank] = view._replace(stands=stands, moved=True, moves=max(1, view.moves))

    def _others(self, call: PendingCall) -> RankSet:
        """Return the ranks that a call waits for. Where a recorder could not be read, the stack shows whether the rank
        arrived; a stopped rank makes no progress in the call either."""
        unknown = RankSet(
            rank
            for rank in call.unknown & self.world
            if rank not in self.views
            or self.views[rank].activity.word != "collective"
            or self.views[rank].state in "TtZX"
        )
        return (call.absent or unknown or call.elsewhere) & self.world

    def awaited(self) -> RankSet | None:
        """Return the ranks that other ranks wait for, or None if that is not known exactly."""
        found = RankSet()
        for node in self.waiting():
            if not node.exact:
                return None
            found |= node.waits
        return found

    def victims_of(self, culprits: RankSet) -> RankSet:
        """Return the ranks that wait for these, directly or through others."""
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
    def peer(view: ProcessView) -> int | None:
        """Return the rank at the other end of a send or recv, from the arguments of the call."""
        if view.activity.word != "p2p" or view.thread is None:
            return None
        for function in ("recv", "send", "recv_object_list", "send_object_list"):
            for name in ("src", "dst", "group_src", "group_dst"):
                text = view.thread.hints.get(f"{function}.{name}", "")
                if text.isdigit():
                    return int(text)
        return None

    def roots(self) -> Iterator[RankGroup]:
        """Yield the groups that wait for no rank."""
        for node in self.nodes:
            if not node.is_waiting:
                yield node

    def waiting(self) -> list[RankGroup]:
        return [node for node in self.nodes if node.is_waiting]


def _of_stack(progress: CollectiveProgress, waits: list[PendingCall], view: ProcessView) -> PendingCall | None:
    """Return the pending call that the thread is in: the newest one with the name of its operation."""
    mine = [
        wait for wait in waits if view.thread is not None and progress.name(wait.entry.operation) == view.activity.op
    ]
    return max(mine, key=lambda wait: wait.entry.record, default=None)


def _without_gpu_waits(nodes: list[RankGroup]) -> list[RankGroup]:
    """Return the groups, with waits for the GPU taken as waits for no rank if other ranks are in a collective on the
    CPU.

    A rank that waits for its GPU may wait for other ranks there, in a collective that the GPU runs. If others are in a
    collective on the CPU, it has not arrived in that.
    """
    if not any(node.reason in PEER and node.reason != "gpu-wait" for node in nodes):
        return nodes
    return [
        node._replace(reason="gpu", waits=RankSet()) if node.reason == "gpu-wait" and node.call is None else node
        for node in nodes
    ]
