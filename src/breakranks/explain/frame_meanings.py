"""What frames mean: one table for torch, the standard library and other libraries.

A row means: a frame of this function in this file shows this activity. Rows are tried on the frames below the innermost
frame of the user's code, so that the user's own ``recv`` is not mistaken for torch's. Of several matching rows, the one
with the highest weight counts: a ``select`` inside a data loader is data loading.

Users add rows in a TOML file (see docs/why.md):

    [[meaning]]
    activity = "socket"
    file = "mycompany/rpc.py"
    function = "call"
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from breakranks.errors import UsageError

# The activities of a thread.
ACTIVITIES = frozenset(
    "collective p2p rendezvous store gpu-wait prompt held file-lock data-loading helper-wait subprocess compile"
    " thread-wait gil-wait socket io checkpoint sleep gc import event-loop idle exit compute unknown".split()
)

# A rank with one of these activities waits for other ranks.
PEER = frozenset({"collective", "p2p", "rendezvous", "store", "gpu-wait"})


class FrameMeaning(NamedTuple):
    activity: str
    file: str
    function: str
    weight: int
    op: str = ""


def _m(activity: str, file: str, function: str, weight: int, op: str = "") -> FrameMeaning:
    return FrameMeaning(activity=activity, file=file, function=function, weight=weight, op=op)


# Operations that rules tell from others.
MULTIPROCESSING_POOL, PROCESS_POOL, JOBLIB = POOLS = ("multiprocessing.Pool", "ProcessPoolExecutor", "joblib")
LOCK, LOGGING_LOCK, IMPORT_LOCK = LOCKS = ("lock", "logging lock", "import lock")
JOIN, FUTURE, SHUTDOWN, LAST_JOIN = JOINS = (
    "Thread.join", "Future.result", "ThreadPoolExecutor.shutdown", "waiting for its threads to end",
)  # fmt: skip
UNNAMED_COLLECTIVE = "a collective"

_STOP_STATE = r"breakranks/(rank/stop_state|inside/rank/seat)\.py"  # and its name in version 0.1
_C10D = r"torch/distributed/distributed_c10d\.py"
_COLLECTIVES = (
    "all_reduce|all_reduce_coalesced|barrier|monitored_barrier|broadcast|broadcast_object_list|reduce|gather|scatter"
    r"|_?all_gather\w*|gather_object|scatter_object_list|_?reduce_scatter\w*|all_to_all\w*"
    "|destroy_process_group"
)
# Weights: what a person would name first. A prompt outweighs everything; a generic wait is outweighed by its purpose.
PYTHON: tuple[FrameMeaning, ...] = (
    # At a prompt.
    _m("held", _STOP_STATE, r"held", 120, "breakranks"),
    _m("prompt", _STOP_STATE, r"at_prompt", 120, "breakranks"),
    _m("prompt", r"/(pdb|bdb|cmd)\.py", r"cmdloop|_cmdloop|interaction|user_line|user_call|trace_dispatch", 100, "pdb"),
    _m("prompt", r"IPython/(terminal|core)/.*\.py", r"mainloop|interact|prompt_for_code|cmdloop", 100, "IPython"),
    _m("prompt", r"(ipdb|pudb|web_pdb|remote_pdb|rpdb|madbg)/.*\.py", r".*", 99, "a debugger"),
    _m("prompt", r"debugpy/.*\.py", r"wait_for_client", 100, "debugpy, waiting for a client"),
    _m("prompt", r"/code\.py", r"interact|raw_input|push", 98, "code.interact"),
    # Lock files.
    _m("file-lock", r"torch/utils/file_baton\.py", r"wait", 95, "FileBaton"),
    _m("file-lock", r"filelock/.*\.py", r"acquire|_acquire|__enter__", 94, "filelock"),
    _m("file-lock", r"(portalocker|fasteners|lockfile|oslo_concurrency)/.*\.py", r"acquire|_acquire|__enter__|lock", 93),
    # Ranks that wait for ranks.
    _m("rendezvous", _C10D, r"init_process_group|_new_process_group_helper|_store_based_barrier", 85, "init_process_group"),
    _m("rendezvous", _C10D, r"new_group|_new_group_with_tag|new_subgroups.*|split_group", 84, "new_group"),
    _m("rendezvous", r"torch/distributed/rendezvous\.py", r".*", 83, "init_process_group"),
    _m("rendezvous", r"torch/distributed/elastic/rendezvous/.*\.py", r".*", 82, "torchrun's rendezvous"),
    _m("rendezvous", r"mindspore/communication/.*\.py", r"init|create_group|init_cluster", 83, "init"),
    _m("rendezvous", r"jax/_src/distributed\.py", r"initialize", 83, "jax.distributed.initialize"),
    _m("p2p", _C10D, r"send|recv|isend|irecv|batch_isend_irecv|send_object_list|recv_object_list", 81),
    _m("collective", _C10D, _COLLECTIVES, 80),
    _m("collective", r"torch/distributed/_functional_collectives\.py", r"wait_tensor|wait|all_\w+|reduce_\w+|broadcast", 79),
    _m("collective", r"torch/distributed/nn/functional\.py", r"forward|backward", 78),
    _m("collective", r"torch/nn/parallel/distributed\.py", r"_sync_buffers|_sync_module_states|_verify.*", 78),
    _m("collective", r"mindspore/(communication|mint/distributed)/.*\.py", r"(all_|reduce|broadcast|barrier|gather|scatter).*", 79),
    _m("collective", r"deepspeed/comm/(comm|torch)\.py", _COLLECTIVES + "|allreduce.*|allgather.*", 70),
    _m("collective", r"horovod/.*\.py", r"synchronize|allreduce.*|allgather.*|broadcast.*|barrier|join", 79),
    # Data.
    _m("data-loading", r"torch/utils/data/dataloader\.py", r"_try_get_data|_get_data|_shutdown_workers", 72, "DataLoader"),
    _m("idle", r"torch/utils/data/_utils/worker\.py", r"_worker_loop", 40, "DataLoader worker"),
    _m("idle", r"torch/utils/data/_utils/pin_memory\.py", r"_pin_memory_loop|do_one_step", 73, "pin memory"),
    # Helpers, subprocesses, compilers.
    _m("compile", r"torch/utils/cpp_extension\.py", r"_run_ninja_build|_write_ninja_file_and_build_library|_jit_compile", 66,
       "C++ extension"),
    _m("compile", r"torch/_inductor/.*\.py", r".*compile.*|result|wait|_wait_futures", 66, "inductor"),
    _m("compile", r"triton/(compiler|backends|runtime)/.*\.py", r"compile|make_\w+|_build|build", 66, "triton"),
    _m("compile", r"torch/_dynamo/(convert_frame|eval_frame)\.py", r"_compile|_convert_frame", 30, "torch.compile"),
    _m("helper-wait", r"multiprocessing/pool\.py", r"get|map|starmap|join|apply|next|wait", 62, MULTIPROCESSING_POOL),
    _m("idle", r"multiprocessing/pool\.py", r"worker|_handle_\w+|_help_stuff_finish|_wait_for_updates", 63, "Pool"),
    _m("helper-wait", r"multiprocessing/(process|popen_\w+)\.py", r"join|wait|poll", 61, "Process.join"),
    _m("helper-wait", r"multiprocessing/queues\.py", r"get|put|_feed|join_thread", 60, "multiprocessing.Queue"),
    _m("idle", r"multiprocessing/queues\.py", r"_feed", 64, "queue feeder"),
    _m("helper-wait", r"multiprocessing/(connection|managers|synchronize)\.py", r".*", 58, "multiprocessing"),
    _m("helper-wait", r"concurrent/futures/process\.py", r".*", 59, PROCESS_POOL),
    _m("idle", r"concurrent/futures/process\.py", r"_process_worker|run|wait_result_broken_or_wakeup", 65, PROCESS_POOL),
    _m("idle", r"multiprocessing/managers\.py", r"serve_forever|accepter|serve_client|_run_server", 65, "Manager"),
    _m("helper-wait", r"joblib/.*\.py", r"retrieve|_retrieve|get_result", 60, JOBLIB),
    _m("helper-wait", r"torch/multiprocessing/spawn\.py", r"join|start_processes|spawn", 61, "torch.multiprocessing.spawn"),
    _m("idle", r"torch/_inductor/compile_worker/.*\.py", r".*", 67, "compile worker"),
    _m("subprocess", r"/subprocess\.py", r"run|call|check_call|check_output|wait|_wait|communicate|_communicate|_try_wait", 57,
       "subprocess"),
    _m("subprocess", r"/os\.py", r"system|popen|waitpid|spawnv.*|_spawnvef", 56, "os"),
    # Threads and locks.
    _m("idle", r"concurrent/futures/thread\.py", r"_worker", 52, "thread pool"),
    _m("idle", r"tqdm/_monitor\.py", r"run", 52, "tqdm"),
    _m("idle", r"/threading\.py", r"_thread_wakeup|_Timer_run", 52, "timer"),
    _m("exit", r"/threading\.py", r"_shutdown", 51, LAST_JOIN),
    _m("thread-wait", r"/threading\.py", r"join|_wait_for_tstate_lock", 50, JOIN),
    _m("thread-wait", r"concurrent/futures/_base\.py", r"result|exception|wait|as_completed", 49, FUTURE),
    _m("thread-wait", r"concurrent/futures/thread\.py", r"shutdown", 49, SHUTDOWN),
    _m("thread-wait", r"/queue\.py", r"get|put|join", 48, "queue"),
    _m("thread-wait", r"/threading\.py", r"wait|wait_for|acquire|__enter__", 47, LOCK),
    _m("thread-wait", r"logging/__init__\.py", r"acquire|handle|_acquireLock", 46, LOGGING_LOCK),
    _m("thread-wait", r"<frozen importlib\._bootstrap>", r"acquire|__enter__|_lock_unlock_module", 46, IMPORT_LOCK),
    _m("event-loop", r"(asyncio|uvloop|trio|anyio)/.*\.py", r"run_forever|_run_once|run_until_complete|run", 45),
    # The network.
    _m("socket", r"(urllib3|requests|httpx|httpcore|aiohttp|boto3|botocore|s3transfer|grpc|redis|huggingface_hub|fsspec)/.*\.py",
       r".*", 33, "network request"),
    _m("socket", r"/(http/client|urllib/request|ftplib|smtplib|xmlrpc/client)\.py", r".*", 32, "network request"),
    _m("socket", r"/(socket|ssl|socketserver)\.py", r".*", 31, "socket"),
    _m("socket", r"/selectors\.py", r"select", 20, "select"),
    # Larger operations; these are rarely the innermost library frame.
    _m("checkpoint", r"torch/serialization\.py", r"save|load|_save|_load|_legacy_\w+", 28, "torch.save/load"),
    _m("checkpoint", r"torch/distributed/checkpoint/.*\.py", r"save|load|async_save|_save_state_dict|write_data|read_data", 29,
       "distributed checkpoint"),
    _m("checkpoint", r"safetensors/.*\.py", r".*", 27, "safetensors"),
    _m("import", r"<frozen importlib.*", r"_find_and_load|_load_unlocked|exec_module|_call_with_frames_removed", 8),
)  # fmt: skip

CPP_EXTENSION = "building a C++ extension"

# The purpose, from the frames above the innermost frame of the user's code.
CONTEXT: tuple[FrameMeaning, ...] = (
    _m("data-loading", r"torch/utils/data/_utils/fetch\.py", r"fetch", 9, "loading data"),
    _m("data-loading", r"torch/utils/data/_utils/worker\.py", r"_worker_loop", 8, "loading data"),
    _m("data-loading", r"datasets/.*\.py", r"map|_map_single|load_dataset|__getitem__", 7, "loading data"),
    _m("compile", r"torch/utils/cpp_extension\.py", r"load|load_inline|_jit_compile", 6, CPP_EXTENSION),
    _m("checkpoint", r"torch/(serialization|distributed/checkpoint/.*)\.py", r"save|load", 5, "checkpointing"),
    _m(
        "backward",
        r"torch/(_tensor|autograd/__init__|autograd/graph)\.py",
        r"backward|_engine_run_backward",
        3,
        "backward",
    ),
    _m("exit", r"/threading\.py", r"_shutdown", 4, "ending"),
)

# Why a library makes a collective, from its frames below the user's code.
FSDP, DTENSOR = "gathering parameters (FSDP)", "gathering a sharded tensor (DTensor)"
WITHIN: tuple[FrameMeaning, ...] = (
    _m(
        "gather",
        r"torch/distributed/(_composable/)?fsdp/.*\.py",
        r"_?unshard|wait_for_unshard|_?pre_forward\w*|_all_gather_flat_param|foreach_all_gather\w*",
        9,
        FSDP,
    ),
    _m(
        "gather",
        r"torch/distributed/_?tensor/.*\.py",
        r"full_tensor|redistribute\w*|_to_replicate\w*|to_local",
        8,
        DTENSOR,
    ),
)

# Meanings of C frames, tried below the innermost Python frame, innermost first.
NATIVE: tuple[FrameMeaning, ...] = (
    _m("gil-wait", "", r"take_gil|PyEval_RestoreThread|PyEval_AcquireThread|PyGILState_Ensure", 90),
    _m("p2p", "", r"c10d::ProcessGroup\w+::(Send|Recv)Work::wait|P?MPI_(Send|Recv|Ssend|Bsend|Rsend|Sendrecv|Probe|Mprobe|Mrecv)",
       82),
    _m("store", "", r"c10d::(TCPStore|PrefixStore|FileStore|HashStore)::\w+", 81, "store"),
    _m("rendezvous", "", r"P?MPI_(Init|Init_thread|Comm_spawn|Comm_split|Comm_dup|Comm_create)\w*", 80, "MPI_Init"),
    _m("collective", "", r"c10d::Reducer::\w+|c10d::verify_params_across_processes", 79, "all_reduce"),
    _m("collective", "", r"P?MPI_(Barrier|Bcast|I?[Aa]llreduce|Reduce\w*|Allgather\w*|Gather\w*|Scatter\w*|Alltoall\w*|Scan|Exscan"
       r"|Finalize)", 78),
    _m("p2p", "", r"P?MPI_(Wait|Waitall|Waitany|Waitsome)", 77),
    _m("collective", "", r"c10d::Work::wait|c10d::ops::\w+|c10d::ProcessGroup\w*::\w+|c10d::\w*Work::\w+|gloo::\w+", 70,
       "collective"),
    _m("gpu-wait", "", r"(cuda|cu|hip)(Stream|Device|Event|Ctx)Synchronize\w*|cudaMemcpy\w*|cuMemcpy\w*|aclrtSynchronize\w*", 60),
    _m("gc", "", r"gc_collect_main|gc_collect_generations|PyGC_Collect|_PyGC_Collect\w*", 40),
    _m("prompt", "", r"builtin_input|PyFile_GetLine|PyOS_Readline|PyOS_StdioReadline", 65, "input()"),
    _m("thread-wait", "", r"lock_PyThread_acquire_lock|rlock_acquire|acquire_timed|PyThread_acquire_lock_timed\w*"
       r"|_PyMutex_LockTimed|PyMutex_Lock|lock_acquire|_PyRecursiveMutex_Lock\w*", 30, "lock"),
    _m("thread-wait", "", r"_queue_SimpleQueue_get\w*|simplequeue_get\w*", 31, "queue"),
    _m("helper-wait", "", r"_multiprocessing_SemLock_acquire\w*|semlock_acquire", 32, "multiprocessing lock"),
    # A database that another process has locked: sqlite sleeps and tries again. Counts only while it sleeps.
    _m("file-lock", "", r"sqlite3_step|sqlite3_exec|sqlite3_prepare\w*|sqliteDefaultBusyCallback", 25, "sqlite"),
    _m("sleep", "", r"time_sleep|pysleep", 20),
)  # fmt: skip

# gloo runs an operation in its own thread. The name of the thread function shows the operation when the Python stack
# does not.
GLOO_WORK = re.compile(r"c10d::(?:\(anonymous namespace\)::)?Async(\w+?)(?:CUDA)?Work::")
GLOO_OPS = {
    "Allreduce": "all_reduce", "AllreduceCoalesced": "all_reduce_coalesced", "SparseAllreduce": "all_reduce",
    "Barrier": "barrier", "Broadcast": "broadcast", "Allgather": "all_gather", "Reduce": "reduce",
    "AllgatherCoalesced": "all_gather_coalesced", "Gather": "gather", "Scatter": "scatter",
    "Alltoall": "all_to_all_single", "ReduceScatter": "reduce_scatter",
}  # fmt: skip


class FrameTable:
    """The meanings that apply: those of breakranks and of the user. Results are cached, because frames repeat."""

    def __init__(self, extra: tuple[FrameMeaning, ...] = ()) -> None:
        self._added = [(re.compile(f"(?:{m.file})$"), re.compile(m.function), m) for m in extra]
        self._python = [(re.compile(f"(?:{m.file})$"), re.compile(m.function), m) for m in (*extra, *PYTHON)]
        self._context = [(re.compile(f"(?:{m.file})$"), re.compile(m.function), m) for m in CONTEXT]
        self._within = [(re.compile(f"(?:{m.file})$"), re.compile(m.function), m) for m in WITHIN]
        self._native = [(re.compile(m.function), m) for m in NATIVE]
        self._known: dict[tuple[str, str, str], FrameMeaning | None] = {}

    def python(self, function: str, file: str) -> FrameMeaning | None:
        return self._look("python", self._python, function, file)

    def is_added(self, function: str, file: str) -> bool:
        """Whether a row of the user's names this frame."""
        return bool(self._added) and self._look("added", self._added, function, file) is not None

    def context(self, function: str, file: str) -> FrameMeaning | None:
        return self._look("context", self._context, function, file)

    def within(self, function: str, file: str) -> FrameMeaning | None:
        return self._look("within", self._within, function, file)

    def _look(
        self, sort: str, rows: list[tuple[re.Pattern[str], re.Pattern[str], FrameMeaning]], function: str, file: str
    ) -> FrameMeaning | None:
        key = (sort, function, file)
        if key not in self._known:
            best: FrameMeaning | None = None
            for path, name, meaning in rows:
                if (best is None or meaning.weight > best.weight) and name.fullmatch(function) and path.search(file):
                    best = meaning
            self._known[key] = best
        return self._known[key]

    def native(self, function: str) -> FrameMeaning | None:
        key = ("native", function, "")
        if key not in self._known:
            self._known[key] = next((m for name, m in self._native if name.match(function)), None)
        return self._known[key]


def from_toml(document: dict[str, Any]) -> tuple[FrameMeaning, ...]:
    """Return the rows that a user has added. Raises :class:`UsageError` with the row that is invalid."""
    rows = document.get("meaning", [])
    found = []
    for number, row in enumerate(rows if isinstance(rows, list) else [rows], 1):
        try:
            activity, function = str(row["activity"]), str(row["function"])
            file = str(row.get("file", ".*"))
            re.compile(function)
            re.compile(file)
        except (KeyError, TypeError, AttributeError, re.error, OverflowError, RecursionError) as error:
            raise UsageError(
                f"meaning {number} is invalid: {error}",
                'A row needs activity = "socket", function = "call" and, better, file = "mycompany/rpc.py".',
            ) from None
        if activity not in ACTIVITIES:
            raise UsageError(
                f"meaning {number}: unknown activity {activity!r}", f"Use one of: {', '.join(sorted(ACTIVITIES))}."
            )
        found.append(
            FrameMeaning(activity=activity, file=file, function=function, weight=97, op=str(row.get("op", "")))
        )
    return tuple(found)
