"""The controller of the agents on the hosts of a plan: which hosts are connected, and requests to them.

A :class:`HostController` is used by the thread of a command. A :class:`TransportLoop` carries the lines in a thread of
its own.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from breakranks.hosts.host_messages import Reply, Request
from breakranks.hosts.host_state import HostState
from breakranks.hosts.transport_loop import TransportLoop
from breakranks.hosts.transport_process import allow_files
from breakranks.hosts.transports import HostPlan, LostHost
from breakranks.machine_suspension import stalled

_NOTICE_SECONDS = 1.0  # before a caller is told whom it waits for
_TURN_SECONDS = 0.25
_SEND_SECONDS = 3.0
_BUFFER_BYTES = 1 << 22
_BUSY = "The host may be overloaded. Wait longer: --deadline 30"


class HostController:
    """Agents on hosts, while the context lasts. ``supply`` returns the code that a host lacks."""

    def __init__(
        self,
        plan: HostPlan,
        *,
        nonce: str,
        deadline: float,
        fanout: int = 64,
        supply: Callable[[dict[str, object]], Iterator[bytes]],
    ) -> None:
        self.plan = plan
        self.typed = plan.name  # the target with its options, as a user types it
        self.waits_for: Callable[[Sequence[str]], None] = lambda names: None  # called with the hosts that are slow
        self.deadline = deadline
        self.longer = 3 * deadline  # for what takes its time: sending code, reading C frames, entering ranks
        self._loop = TransportLoop(
            plan, nonce=nonce, deadline=deadline, longer=self.longer, fanout=fanout, supply=supply
        )

    def __enter__(self) -> HostController:
        allow_files(len(self.host_states))
        self._loop.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Disconnect from all hosts."""
        self._loop.stop()

    # ---- the hosts

    @property
    def host_states(self) -> dict[str, HostState]:
        return self._loop.host_states

    @property
    def up(self) -> list[str]:
        """The hosts that are connected."""
        return [host.name for host in self.host_states.values() if host.hello is not None and host.lost is None]

    @property
    def waiting(self) -> list[str]:
        """The hosts that are neither connected nor lost."""
        return list(self._loop.coming)

    @property
    def lost(self) -> dict[str, LostHost]:
        return {host.name: host.lost for host in self.host_states.values() if host.lost is not None}

    @property
    def newest(self) -> float:
        """When a host last connected or was lost, by ``time.monotonic``."""
        return self._loop.newest

    def wait(self, done: Callable[[], bool], seconds: float) -> bool:
        """Wait until a condition on hosts holds; return False if it does not in time."""
        with self._loop.changed:
            return self._loop.changed.wait_for(done, seconds)

    # ---- requests

    def ask(self, requests: Mapping[str, Request], seconds: float) -> Iterator[tuple[str, Reply]]:
        """Send each host its request and yield the answers as they come. A host that answers too late is lost."""
        until = time.monotonic() + seconds
        number, pending = self._loop.begin(requests)
        try:
            while pending.awaited or pending.answers:
                began = time.monotonic()
                left = until - began
                span = max(0.0, min(left, _NOTICE_SECONDS))
                with self._loop.changed:
                    some = self._loop.changed.wait_for(lambda: bool(pending.answers or not pending.awaited), span)
                    answers, awaited = pending.take(), tuple(pending.awaited)
                until += stalled(time.monotonic() - began, span)
                yield from answers
                if some:
                    continue
                if until - began > _NOTICE_SECONDS:
                    self.waits_for(awaited)
                    continue
                for name in awaited:
                    what = f"did not answer within {seconds:.0f} s"
                    self.lose(name, LostHost(kind="timed-out", what=what, remedy=_BUSY))
                return
        finally:
            self.waits_for(())
            self._loop.forget(number)

    def lose(self, name: str, lost: LostHost) -> None:
        """Give up a host, unless it is already lost. It is lost when this returns."""
        host = self.host_states[name]
        self._loop.lose(name, lost)
        while self._loop.is_alive and not self.wait(lambda: host.lost is not None, _TURN_SECONDS):
            pass

    def connect(self, name: str, path: str) -> socket.socket:
        """Return a socket that is linked to the agent of a rank on a host."""
        near, far = socket.socketpair()
        far.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
        far.settimeout(_SEND_SECONDS)
        self._loop.connect(name, path, far)
        return near
