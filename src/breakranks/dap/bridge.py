"""The bridge between clients of the Debug Adapter Protocol and the ranks of a job.

A client comes by a rank's UNIX socket, in the private folder of the job's agents, or by a port on the loopback device,
with a token. The rank is then asked to connect to us: nothing in the job ever listens.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from breakranks.console.debug_session import DebugSession
from breakranks.console.unanswered import waits_of
from breakranks.dap.client_session import ClientRefused, ClientSession
from breakranks.dap.dap_messages import Message, listen_at, pack, peer_of
from breakranks.errors import BreakranksError
from breakranks.rankset import RankSet, ranks_text

LOOPBACK = "127.0.0.1"
_POLL_SECONDS = 0.1
_ANSWER_SECONDS = 5.0  # seconds within which an agent answers
_PATIENCE_SECONDS = 2.0  # seconds that ranks have to extend their timeouts
_CONNECT_SECONDS = 30.0  # seconds that a rank has to import debugpy and connect
_LEAVE_SECONDS = 30.0  # seconds that a rank has to be through with the client before
_BUFFER_BYTES = 1 << 16
_MAX_CLIENTS = 1000
_SILENT = (
    "it does not answer: no Python can run there now, a call in C keeps the GIL. "
    "`breakranks stacks --native` looks at it from outside"
)


class DapUpstream:
    """The connection to pydevd in one rank."""

    def __init__(
        self, rank: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, left: Callable[[int], None]
    ) -> None:
        self.rank = rank
        self.reader = reader
        self.notes: list[str] = []  # what its client should know
        self._writer = writer
        self._left = left

    def send(self, message: Message) -> None:
        self._writer.write(pack(message))

    async def drain(self) -> None:
        await self._writer.drain()

    def close(self) -> None:
        """pydevd lets go of all that it has stopped, and takes its breakpoints away."""
        self._writer.close()
        self._left(self.rank)


class DapBridge:
    """Serves ``ranks`` of a session. ``port``: of the loopback device, 0 for any, None for none; ``folder``: where our
    own debugpy is, for ranks that have none; ``say`` is told who comes and goes."""

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
        self._patient = False
        self._count = 0
        self._talk = ThreadPoolExecutor(1, "breakranks session")  # a session is for one thread at a time

    async def open(self) -> None:
        """Begin to listen. Raises BreakranksError where that cannot be."""
        for rank in self._ranks:
            path = f"{os.path.dirname(self._session.links[rank].found.path)}/dap-{rank}.sock"
            try:
                listener = listen_at(path)
            except FileExistsError:
                raise BreakranksError(
                    f"another `breakranks attach --dap` serves rank {rank}", "End that one first, or use it."
                ) from None
            except OSError as error:
                raise BreakranksError(f"cannot listen at {path}: {error.strerror}", "Has the job ended?") from None
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
        """Serve until ``stop``; False if the job has ended before."""
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
        """Clients are told and hung up on, ranks run on, sockets go."""
        for server in self._servers:
            server.close()
        for path in self.paths.values():
            _unlink(path)
        for one in list(self._visits):
            one.cancel()
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

    async def _with_session(self, function: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._talk, function, *args)

    async def _ask(self, rank: int, message: Message) -> Message | None:
        found = await self._with_session(self._session.ask, message, RankSet([rank]), _ANSWER_SECONDS)
        reply = found.get(rank)
        return reply if isinstance(reply, dict) else None

    async def _enter(self, rank: int) -> DapUpstream:
        """Start debugpy in a rank, and be connected to it."""
        if rank not in self._ranks:
            raise ClientRefused(f"it is not served here; {ranks_text(self._ranks)} {_are(self._ranks)}")
        if rank in self._busy:
            raise ClientRefused("another client is attached to it")
        self._busy.add(rank)
        try:
            notes = await self._with_session(self._make_patient)
            upstream = await self._fetch(rank)
        except BaseException:
            self._left(rank)
            raise
        upstream.notes = notes
        return upstream

    def _left(self, rank: int) -> None:
        self._busy.discard(rank)
        if not self._busy:
            self._talk.submit(self._make_patient)

    def _make_patient(self) -> list[str]:
        """Before a client can stop a rank, all ranks get long timeouts; after the last one their own. What stays short.

        In the session's thread, where it sees who is busy by then.
        """
        needed = bool(self._busy)
        if needed and self._patient:
            return []
        self._patient = needed
        replies = self._session.ask({"do": "patience", "needed": needed}, self._session.ranks, _PATIENCE_SECONDS)
        notes: dict[str, list[int]] = {}
        for rank, reply in replies.items():
            for note in reply.get("notes") or []:
                notes.setdefault(str(note), []).append(rank)
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
            raise ClientRefused(f"it cannot be met: {error}") from None
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
            raise ClientRefused("somebody else has connected in its place")
        reader, writer = await asyncio.open_connection(sock=connection, limit=_BUFFER_BYTES)
        return DapUpstream(rank, reader, writer, self._left)

    async def _invite(self, rank: int, path: str) -> None:
        """Tell a rank to come. One that is not yet through with its last client is given a moment."""
        loop = asyncio.get_running_loop()
        until = loop.time() + _LEAVE_SECONDS
        while True:
            reply = await self._ask(rank, {"do": "dap", "path": path, "folder": self._folder})
            if reply is None:
                raise ClientRefused(_SILENT if rank in self._session.ranks else "it has ended")
            if reply.get("started"):
                return
            if not reply.get("busy") or loop.time() > until:
                raise ClientRefused(str(reply.get("why") or reply.get("text") or "it does not know how"))
            await asyncio.sleep(_POLL_SECONDS)

    async def _where(self, rank: int) -> str:
        """Why a rank that was to pause has not."""
        reply = await self._ask(rank, {"do": "where"})
        if reply is None:
            return f"rank {rank} has not stopped: {_SILENT}."
        waits = waits_of({rank: reply}, stopped=RankSet(), here=self._session.ranks)
        at = waits[0].text if waits else f"rank {rank} is in a call"
        return (
            f"{at}, and has not come to a line of Python since. debugpy cannot stop it there: it will stop when that "
            "call returns. `breakranks stacks` and `breakranks why` look at it as it is."
        )


def _are(ranks: RankSet) -> str:
    return "is" if len(ranks) == 1 else "are"


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass
