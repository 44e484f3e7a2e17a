"""The table of the zoo: how each job is started, where its ranks must stand, and what `why` must say of it.

`kinds` are the accepted ones, the best first; none means a healthy job: no verdict, exit status 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGKILL, SIGSTOP, SIGUSR1


def ranks_of(text: str) -> frozenset[int]:
    """`0-2,5` as a set."""
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def nothing(folder: Path) -> None:
    """Most jobs need no preparation."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One job.

    `launcher` is torchrun, mpirun, shell (a loop of `RANK=$r python job.py &`) or python (the job starts its
    ranks itself). `stands` says which function is on the stack of which ranks or marked helpers: the harness
    waits for it. `busy` ranks may use the CPU, `gone` ones must have exited. `culprits` lists accepted rank
    sets; None leaves it open, and then `involved` (culprits and victims together) may say more. `function` is
    what `where` may name. `mentions` are words that the summary must hold; `@file` stands for what the job
    wrote into that file, `{folder}` for its folder.
    """

    name: str
    launcher: str = "torchrun"
    ranks: int = 3
    kinds: tuple[str, ...] = ()
    culprits: tuple[str, ...] | None = None
    victims: tuple[str, ...] | None = None
    involved: str | None = None
    function: tuple[str, ...] = ()
    mentions: tuple[str, ...] = ()
    sure: bool = True
    stands: dict[str, str] = field(default_factory=dict)
    busy: str = ""
    gone: str = ""
    started: str = ""
    signals: tuple[tuple[str, int], ...] = ()
    stdin: str = "null"
    extras: tuple[str, ...] = ()
    extra_marks: tuple[str, ...] = ()
    helpers: tuple[str, ...] = ()
    prepare: Callable[[Path], None] = nothing
    environment: dict[str, str] = field(default_factory=dict)
    program: str = ""

    @property
    def marks(self) -> tuple[str, ...]:
        """The marks that say that the job is about to be in its state."""
        ranks = sorted(ranks_of(self.started or f"0-{self.ranks - 1}"))
        return (*map(str, ranks), *self.helpers)


def left_over(path: str, content: str = "") -> Callable[[Path], None]:
    """A lock file whose maker is gone."""

    def prepare(folder: Path) -> None:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content)

    return prepare


CASES = (
    # --- a rank is missing from a collective -------------------------------------------------------------
    Case(
        name="missing_sleep",
        kinds=("missing-from-collective",),
        culprits=("1",),
        victims=("0,2",),
        function=("wait_for_quota",),
        stands={"0,2": "all_reduce", "1": "wait_for_quota"},
    ),
    Case(
        name="missing_early_return",
        kinds=("missing-from-collective",),
        culprits=("2",),
        victims=("0-1",),
        function=("wait_until_published",),
        stands={"0-1": "all_reduce", "2": "wait_until_published"},
    ),
    # --- ranks are in different collectives --------------------------------------------------------------
    Case(
        name="mismatch_barrier",
        kinds=("collective-mismatch",),
        culprits=("0", "0-2"),
        stands={"0": "barrier", "1-2": "all_reduce"},
        mentions=("barrier", "all_reduce"),
    ),
    Case(
        name="mismatch_log_rank0",
        kinds=("collective-mismatch",),
        culprits=("0", "0-2"),
        stands={"0": "all_reduce", "1-2": "barrier"},
        mentions=("barrier", "all_reduce"),
    ),
    Case(
        name="mismatch_call_sites",
        kinds=("collective-mismatch",),
        culprits=("0", "0-2"),
        stands={"0": "broadcast", "1-2": "all_gather"},
        mentions=("broadcast", "all_gather"),
    ),
    Case(
        name="mismatch_uneven_ddp",
        kinds=("collective-mismatch",),
        culprits=("1", "0-2"),
        stands={"0,2": "backward", "1": "barrier"},
        mentions=("barrier",),
    ),
    # --- sends and receives ------------------------------------------------------------------------------
    Case(
        name="p2p_recv_first",
        kinds=("p2p-deadlock",),
        culprits=("0-2",),
        function=("exchange_halos",),
        stands={"0-2": "recv"},
    ),
    Case(
        name="p2p_ring_send",
        kinds=("p2p-deadlock",),
        culprits=("0-2",),
        function=("pass_to_the_right",),
        stands={"0-2": "send"},
    ),
    Case(
        name="p2p_recv_from_barrier",
        kinds=("p2p-deadlock", "collective-mismatch"),
        culprits=("0", "0-1", "0-2"),
        stands={"0": "collect_results", "1-2": "barrier"},
        mentions=("recv", "barrier"),
    ),
    # --- ranks that are gone, or stopped -----------------------------------------------------------------
    Case(
        name="exited_store_key",
        kinds=("rank-exited",),
        culprits=("1",),
        victims=("0,2",),
        gone="1",
        stands={"0,2": "wait_for_peers"},
    ),
    Case(
        name="exited_before_init",
        kinds=("rank-exited", "rendezvous-incomplete"),
        culprits=("2",),
        victims=("0-1",),
        gone="2",
        stands={"0-1": "init_process_group"},
    ),
    Case(
        name="rank_stopped",
        kinds=("rank-stopped",),
        culprits=("1",),
        victims=("0,2",),
        signals=(("1", SIGSTOP),),
        stands={"0,2": "all_reduce"},
        mentions=("stopped",),
    ),
    # --- lock files and locks on files -------------------------------------------------------------------
    Case(
        name="baton_stale_all",
        kinds=("stale-lock-file",),
        involved="0-2",
        prepare=left_over("extensions/fused_scale/lock"),
        stands={"0-2": "FileBaton.wait"},
        mentions=("{folder}/extensions/fused_scale/lock",),
    ),
    Case(
        name="baton_stale_one",
        kinds=("stale-lock-file",),
        culprits=("0",),
        victims=("1-2",),
        prepare=left_over("extensions/fused_scale/lock"),
        stands={"0": "FileBaton.wait", "1-2": "barrier"},
        mentions=("{folder}/extensions/fused_scale/lock",),
    ),
    # --- data loading ------------------------------------------------------------------------------------
    Case(
        name="loader_worker_stuck",
        kinds=("data-loading",),
        culprits=("1",),
        victims=("0,2",),
        function=("fetch_remote", "Shards.fetch_remote", "train"),
        helpers=("helper",),
        stands={"0,2": "all_reduce", "1": "_next_data", "helper": "fetch_remote"},
    ),
    # --- people ------------------------------------------------------------------------------------------
    Case(
        name="pdb_rank0",
        kinds=("debugger-prompt",),
        culprits=("0",),
        victims=("1-2",),
        function=("check_loss",),
        stdin="pty",
        stands={"0": "pdb.py", "1-2": "all_reduce"},
    ),
    # --- the GIL -----------------------------------------------------------------------------------------
    Case(
        name="gil_sleep",
        kinds=("gil-held",),
        culprits=("1",),
        victims=("0,2",),
        function=("read_sensor",),
        stands={"0,2": "all_reduce", "1": "read_sensor"},
    ),
    # --- commands ----------------------------------------------------------------------------------------
    Case(
        name="subprocess_sleep",
        kinds=("subprocess-wait",),
        culprits=("0",),
        victims=("1-2",),
        function=("upload_checkpoint",),
        stands={"0": "upload_checkpoint", "1-2": "barrier"},
        mentions=("sleep 100000",),
    ),
    # --- rendezvous --------------------------------------------------------------------------------------
    Case(
        name="rendezvous_three_of_four",
        launcher="shell",
        ranks=4,
        started="0-2",
        kinds=("rendezvous-incomplete",),
        culprits=("3",),
        victims=("0-2",),
        stands={"0-2": "init_process_group"},
    ),
    # --- nothing is wrong --------------------------------------------------------------------------------
    Case(name="healthy_fast", busy="0-2"),
    Case(name="healthy_slow", busy="0-2"),
    Case(name="healthy_unbalanced", busy="0-2"),
)

BY_NAME = {case.name: case for case in CASES}
