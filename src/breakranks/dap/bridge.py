"""The bridge between clients of the Debug Adapter Protocol and the ranks of a job.

A client connects to the UNIX socket of a rank, in the private folder of the job's agents, or to a port of the loopback
device, with a token. The rank then connects to the bridge: no process of the job listens.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from breakranks.console.debug_session import DebugSession
from breakranks.console.unanswered import waits_of
from breakranks.console.wait_times import DAP_SECONDS
from breakranks.dap.client_session import ClientRefused, ClientSession
from breakranks.dap.dap_messages import DapMessage, listen_at, pack, peer_of
from breakranks.errors import BreakranksError
from breakranks.rank_messages import DapRequest, DoneEvent, ErrorEvent, PatienceRequest, RankEvent
from breakranks.rankset import RankSet, ranks_text

LOOPBACK = "127.0.0.1"
_POLL_SECONDS = 0.1
_PATIENCE_SECONDS = 2.0  # for ranks to extend their timeouts
_CONNECT_SECONDS = 30.0  # for a rank to import debugpy and connect
_LEAVE_SECONDS = 30.0  # for a rank to end the session of its last client
_BUFFER_BYTES = 1 << 16
_MAX_CLIENTS = 1000
Result = TypeVar("Result")
_SILENT = (
    "it does not answer: no Python can run there now, since a call in C holds the GIL. "
    "`breakranks stacks --native` shows it from outside"
)


class DapUpstream:
    """The connection to pydevd in one rank."""

    def __init__(
        self, rank: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, left: Callable[[int], None]
    ) -> None:
        self.rank = rank
        self.reader = reader
        self.notes: list[str] = []  # for its client
        self._writer = writer
        self._left = left

    def send(self, message: DapMessage) -> None:
        self._writer.write(pack(message))

    async def drain(self) -> None:
        await self._writer.drain()

    def close(self) -> None:
        """Hang up. pydevd then resumes all that it has stopped, and removes its breakpoints."""
        self._writer.close()
        self._left(self.rank)


class DapBridge:
    """Serves ``ranks`` of a session. ``port``: of the loopback device, 0 for any, None for none. ``folder``: that of a
    debugpy, for ranks that have none. ``say`` is called with a line about each client."""

    def __init__(
        self,
        session: DebugSession,
        ranks: RankSet,
        *,
        port: int | None,
        token: str,
        folder: str,
        say: Callable[[str], None],
    ) -> None:
        self._session, self._ranks, self._folder, self._say = session, ranks, folder, say
        self.token = token
        self._wanted = port
        self.port = 0
        self.paths: dict[int, str] = {}  # the socket of each rank
        self._servers: list[asyncio.Server] = []
        self._visits: set[asyncio.Task[None]] = set()
        self._busy: set[int] = set()
        self._extended = False
        self._count = 0
        self._talk = ThreadPoolExecutor(1, "breakranks session")  # a session is for one thread at a time

    async def open(self) -> None:
        """Begin to listen. Raises BreakranksError."""
        for rank in self._ranks:
            path = f"{os.path.dirname(self._session.links[rank].found.path)}/dap-{rank}.sock"
            try:
                listener = listen_at(path)
            except FileExistsError:
                raise BreakranksError(
                    f"another `breakranks attach --dap` serves rank {rank}", "End that one first, or connect to it."
                ) from None
            except OSError as error:
                raise BreakranksError(
                    f"cannot listen at {path}: {error.strerror}",
                    "Check that the job still runs: breakranks ps",
                ) from None
            self.paths[rank] = path
            self._servers.append(await asyncio.start_server(self._by_socket(rank), sock=listener, limit=_BUFFER_BYTES))
        if self._wanted is None:
            return
        try:
            server = await asyncio.start_server(self._by_port, LOOPBACK, self._wanted, limit=_BUFFER_BYTES)
        except OSError as error:
            raise BreakranksError(
                f"cannot listen on port {self._wanted}: {os.strerror(error.errno or 0)}",
                "Leave --dap-port out to take one that is free.",
            ) from None
        self._servers.append(server)
        self.port = int(server.sockets[0].getsockname()[1])

    async def run(self, stop: asyncio.Event) -> bool:
        """Serve until ``stop`` is set; False if the job has ended before."""
        while not stop.is_set():
            await self._with_session(self._session.poll, 0.0)
            self._session.take_events()
            if not self._session.ranks & self._ranks:
                return False
            try:
                await asyncio.wait_for(stop.wait(), _POLL_SECONDS)
            except asyncio.TimeoutError:
                pass
        return True

    async def close(self) -> None:
        """Disconnect the clients, resume the ranks, remove the sockets."""
        for server in self._servers:
            server.close()
        for path in self.paths.values():
            _unlink(path)
        for visit in list(self._visits):
            visit.cancel()
        await asyncio.gather(*self._visits, return_exceptions=True)
        self._talk.shutdown()

    # ---- clients

    def _by_socket(self, rank: int) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]:
        async def came(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            _, uid = peer_of(writer.get_extra_info("socket"))
            if uid not in (os.geteuid(), 0):
                writer.transport.abort()
                return
            await self._visit(reader, writer, rank)

        return came

    async def _by_port(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._visit(reader, writer, None)

    async def _visit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rank: int | None) -> None:
        task = asyncio.current_task()
        if task is None or len(self._visits) >= _MAX_CLIENTS:
            writer.transport.abort()
            return
        self._visits.add(task)
        visit = ClientSession(
            reader, writer, rank=rank, token=self.token, enter=self._enter, where=self._where, say=self._say
        )
        try:
            await visit.run()
        except asyncio.CancelledError:
            pass  # the bridge closes
        finally:
            self._visits.discard(task)

    # ---- ranks

    async def _with_session(self, function: Callable[..., Result], *args: object) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._talk, function, *args)

    async def _enter(self, rank: int) -> DapUpstream:
        """Start debugpy in a rank, and return the connection to it."""
        if rank not in self._ranks:
            raise ClientRefused(f"it is not served here; {ranks_text(self._ranks)} {_are(self._ranks)}")
        if rank in self._busy:
            raise ClientRefused("another client is attached to it")
        self._busy.add(rank)
        try:
            notes = await self._with_session(self._set_timeouts)
            upstream = await self._fetch(rank)
        except BaseException:
            self._left(rank)
            raise
        upstream.notes = notes
        return upstream

    def _left(self, rank: int) -> None:
        self._busy.discard(rank)
        if not self._busy:
            self._talk.submit(self._set_timeouts)

    def _set_timeouts(self) -> list[str]:
        """Extend the timeouts of all ranks before the first client can stop one, and restore them after the last.

        Return notes on those that stay short. It runs in the session's thread, one call at a time.
        """
        needed = bool(self._busy)
        if needed and self._extended:
            return []
        self._extended = needed
        replies = self._session.ask_done(PatienceRequest(needed=needed), self._session.ranks, _PATIENCE_SECONDS)
        notes: dict[str, list[int]] = {}
        for rank, reply in replies.items():
            for note in reply.notes or ():
                notes.setdefault(note, []).append(rank)
        return [f"{ranks_text(RankSet(ranks))}: {note}" for note, ranks in notes.items()]

    async def _fetch(self, rank: int) -> DapUpstream:
        link = self._session.links.get(rank)
        if link is None or link.closed:
            raise ClientRefused("it has ended")
        self._count += 1
        path = f"{os.path.dirname(link.found.path)}/dap-{os.getpid()}-{self._count}.sock"
        try:
            listener = listen_at(path)
        except OSError as error:
            raise ClientRefused(f"cannot create the socket for the connection: {error}") from None
        try:
            await self._invite(rank, path)
            connection, _ = await asyncio.wait_for(asyncio.get_running_loop().sock_accept(listener), _CONNECT_SECONDS)
        except asyncio.TimeoutError:
            raise ClientRefused(f"it has not connected in {_CONNECT_SECONDS:.0f} s") from None
        finally:
            listener.close()
            _unlink(path)
        if peer_of(connection)[0] != link.found.pid:
            connection.close()
            raise ClientRefused("another process has connected in its place")
        reader, writer = await asyncio.open_connection(sock=connection, limit=_BUFFER_BYTES)
        return DapUpstream(rank, reader, writer, self._left)

    async def _invite(self, rank: int, path: str) -> None:
        """Request a rank to connect. One that still serves its last client gets a moment."""
        loop = asyncio.get_running_loop()
        until = loop.time() + _LEAVE_SECONDS
        while True:
            request = DapRequest(path=path, folder=self._folder)
            replies = await self._with_session(self._session.ask, request, RankSet([rank]), DAP_SECONDS)
            reply = replies.get(rank)
            if reply is None:
                raise ClientRefused(_SILENT if rank in self._session.ranks else "it has ended")
            if isinstance(reply, DoneEvent) and reply.started:
                return
            if not (isinstance(reply, DoneEvent) and reply.busy) or loop.time() > until:
                raise ClientRefused(_refusal(reply))
            await asyncio.sleep(_POLL_SECONDS)

    async def _where(self, rank: int) -> str:
        """Why a rank has not paused."""
        replies = await self._with_session(self._session.ask_where, RankSet([rank]), DAP_SECONDS)
        if rank not in replies:
            return f"rank {rank} has not stopped: {_SILENT}."
        waits = waits_of(replies, stopped=RankSet(), here=self._session.ranks)
        at = waits[0].text if waits else f"rank {rank} is in a call"
        return (
            f"{at}, and has not reached a line of Python since. debugpy cannot stop it there: it stops when that call "
            "returns. `breakranks stacks` and `breakranks why` show it as it is."
        )


def ranks_without_debugpy(session: DebugSession, ranks: RankSet) -> RankSet:
    """The ranks that have no debugpy of their own."""
    replies = session.ask_done(DapRequest(), ranks, DAP_SECONDS)
    return RankSet(rank for rank in ranks if rank not in replies or not replies[rank].own)


def _refusal(reply: RankEvent) -> str:
    """Why debugpy was not started in a rank."""
    if isinstance(reply, ErrorEvent):
        return reply.text
    return (reply.why if isinstance(reply, DoneEvent) else None) or "its breakranks does not support it"


def _are(ranks: RankSet) -> str:
    return "is" if len(ranks) == 1 else "are"


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass
