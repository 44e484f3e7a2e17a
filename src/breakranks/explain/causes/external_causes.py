"""A rank waits for something outside the job: a subprocess, a compiler, a peer on the network."""

from __future__ import annotations

from breakranks.explain.causes import Cause, Fact
from breakranks.explain.finding_parts import Doing, Where


class SubprocessGone(Cause, frozen=True, kw_only=True):
    where: Where | None


class SubprocessWait(Cause, frozen=True, kw_only=True):
    pid: int
    command: str
    state: str
    where: Where | None


class Compiling(Cause, frozen=True, kw_only=True):
    """``pid`` 0: it compiles in the process itself."""

    what: str
    pid: int
    command: str
    where: Where | None


class AwaitsConnection(Cause, frozen=True, kw_only=True):
    local: str
    where: Where | None


class AwaitsAnswer(Cause, frozen=True, kw_only=True):
    peer: str
    peer_pid: int
    peer_command: str
    where: Where | None


class AwaitsAnswers(Cause, frozen=True, kw_only=True):
    """Ranks of one host, each waiting for its own peer."""

    peers: tuple[str, ...]


class NoChild(Fact, frozen=True, kw_only=True):
    pass


class SubprocessCommand(Fact, frozen=True, kw_only=True):
    pid: int
    command: str


class ProcessLoad(Fact, frozen=True, kw_only=True):
    state: str
    cpu_percent: float
    kernel: str


class SubprocessDoing(Fact, frozen=True, kw_only=True):
    doing: Doing


class CompilerLoad(Fact, frozen=True, kw_only=True):
    """``pid`` 0: it compiles in its own process."""

    pid: int = 0
    cpu_percent: float = 0.0


class ListensOn(Fact, frozen=True, kw_only=True):
    local: str
    call: str


class SocketQueues(Fact, frozen=True, kw_only=True):
    protocol: str
    local: str
    peer: str
    status: str
    unsent: int
    unread: int
    retries: int


class InNetworkCode(Fact, frozen=True, kw_only=True):
    pass


class WokenAgain(Fact, frozen=True, kw_only=True):
    pass
