"""Rows of exceptions that speak of other ranks: timeouts, peers that are gone, collectives that do not fit."""

from __future__ import annotations

from breakranks.logs.known_row import (
    EITHER,
    EXCEPTION,
    INFRASTRUCTURE,
    NO,
    PERHAPS,
    TIMEOUT,
    WORKLOAD,
    KnownRow,
    exception_row,
)
from breakranks.logs.log_events import CASCADE, INITIATING

_BUG = (INITIATING, WORKLOAD, NO, EXCEPTION)
_PEER_GONE = (CASCADE, EITHER, PERHAPS, EXCEPTION)
_LATE = (INITIATING, EITHER, PERHAPS, TIMEOUT)

TIMEOUT_EXCEPTIONS: tuple[KnownRow, ...] = (
    exception_row(
        "collective-timeout",
        r"collective operation timeout|timed out in blocking wait",
        _LATE,
        "A collective did not complete within the timeout of its group: a rank did not come to it, or is slow.",
        "Compare the last enqueued work of all ranks: who stands behind is the cause. `breakranks watch --on-hang 300` "
        "asks the ranks before the timeout ends them.",
    ),
    exception_row(
        "gloo-timeout",
        r"Timed out waiting \d+ms for (?P<operation>\w+) operation to complete",
        _LATE,
        "A peer did not come to the operation within the timeout of its group.",
        "Find the rank that did not report: it did not come. `breakranks watch --on-hang 300` asks before the timeout.",
    ),
    exception_row(
        "gloo-pair-closed",
        r"Application timeout caused pair closure",
        (CASCADE, EITHER, PERHAPS, TIMEOUT),
        "An earlier operation of this same rank timed out, and gloo then closed its connections.",
        "Look at the earlier timeout of this rank.",
    ),
    exception_row(
        "monitored-barrier-peer",
        r"successfully reached monitoredBarrier, but received errors",
        (CASCADE, EITHER, PERHAPS, TIMEOUT),
        "This rank came to the barrier; another one did not.",
        "Rank 0 names the rank that did not come.",
    ),
    exception_row(
        "monitored-barrier",
        r"Ranks? (?P<ranks>[\d, ]+) failed to pass monitoredBarrier",
        _LATE,
        "The named ranks did not come to the barrier in time.",
        "Look at where these ranks were: `breakranks watch --on-hang` shows it in the next run.",
    ),
    exception_row(
        "store-clients",
        r"Timed out after \d+ seconds waiting for clients\. (?P<joined>\d+)/(?P<size>\d+) clients joined",
        _LATE,
        "Not all ranks connected to the store of rank 0: some never started, or cannot reach MASTER_ADDR.",
        "Count the ranks on each host (`breakranks ps`); test the port from each host with nc.",
    ),
    exception_row(
        "store-barrier",
        r"store based barrier on rank|[Tt]imed out waiting on barrier on rank|barrier timeout after",
        _LATE,
        "Not all ranks came to init_process_group or new_group in time.",
        "Find the ranks that did not report it: they did not come, or ended before.",
    ),
    exception_row(
        "store-wait",
        r"[Ww]ait timeout after \d+ms, keys: (?P<keys>\S+)|Timeout waiting for key|got error: Socket Timeout"
        r"|^(?:RuntimeError|\S*DistStoreError): (?:Socket )?Timeout",
        _LATE,
        "Another rank did not write what this one waits for in the store: it did not come to the same call.",
        "Find the rank that did not report it.",
    ),
    exception_row(
        "store-unreachable",
        r"client socket has timed out after .* trying to connect to \((?P<address>[^)]*)\)"
        r"|client socket has failed to connect",
        (INITIATING, INFRASTRUCTURE, PERHAPS, TIMEOUT),
        "The store of rank 0 does not answer: rank 0 is not running, or MASTER_ADDR or the port is wrong or blocked.",
        "Check MASTER_ADDR and MASTER_PORT on all hosts; test the port from each with nc.",
    ),
    exception_row(
        "address-in-use",
        r"EADDRINUSE|[Aa]ddress already in use",
        (INITIATING, INFRASTRUCTURE, PERHAPS, EXCEPTION),
        "The port is taken: by a process of an earlier run that still lives, or by another job.",
        "`breakranks ps` shows ranks that were left; choose another MASTER_PORT or use --standalone.",
    ),
)

PEER_EXCEPTIONS: tuple[KnownRow, ...] = (
    exception_row(
        "gloo-peer-closed",
        r"Connection closed by peer|gloo/transport/tcp/\S+\] .*(?:Connection reset by peer|Broken pipe)",
        _PEER_GONE,
        "A peer closed its connection: its process ended before.",
        "Look for the first failure on another rank.",
    ),
    exception_row(
        "gloo-connect",
        r"Gloo connectFullMesh failed|gloo/transport/tcp/\S+\] .*(?:connect|SO_ERROR)",
        _PEER_GONE,
        "A rank could not connect to another one while the group was set up: the peer ended, or gloo chose "
        "a wrong interface.",
        "Look for a peer that failed or was started again; else set GLOO_SOCKET_IFNAME.",
    ),
    exception_row(
        "mismatched-collectives",
        r"Detected mismatch between collectives on ranks\. Rank (?P<rank>\d+) is running collective: "
        r".*?but Rank (?P<other>\d+)",
        _BUG,
        "Ranks called different collectives, or with different shapes or types.",
        "Compare the two calls that the message names; ranks took different branches or have different sizes.",
    ),
    exception_row(
        "unused-parameters",
        r"Expected to have finished reduction in the prior iteration",
        _BUG,
        "DistributedDataParallel waits for gradients of parameters that took no part in the loss.",
        "Use all parameters, or find_unused_parameters=True; TORCH_DISTRIBUTED_DEBUG=DETAIL names them.",
    ),
    exception_row(
        "parameters-differ",
        r"parameter shapes? .*across ranks|verifying shape of model for ranks|has \d+ params, while rank",
        _BUG,
        "The model does not have the same parameters on all ranks.",
        "Compare how each rank builds the model.",
    ),
    exception_row(
        "dynamo-error",
        r"^torch\._(?:dynamo|inductor)\.\S*(?:Unsupported|InternalTorchDynamoError|BackendCompilerFailed|TorchRuntimeError"
        r"|InductorError|RecompileError|\w*Error)",
        _BUG,
        "torch.compile failed on this code.",
        "Run with TORCH_COMPILE_DISABLE=1 to see whether the code itself works.",
    ),
    exception_row(
        "store-gone",
        r"^\S*Dist(?:Network|Store)Error\b|Failed to recv, got 0 bytes|Connection was likely closed"
        r"|got error: (?:Connection reset|Broken pipe)|^RuntimeError: (?:Connection reset by peer|Broken pipe)",
        _PEER_GONE,
        "The store, mostly in rank 0's process, ended or cannot be reached.",
        "Look at rank 0 and its host first.",
    ),
    exception_row(
        "nccl-invalid-usage",
        r"NCCL error.*invalid (?:usage|argument)|ncclInvalid(?:Usage|Argument)",
        _BUG,
        "NCCL was called in a wrong way: two ranks on one GPU, or wrong arguments.",
        "Set the device of each rank before init_process_group; run with NCCL_DEBUG=WARN for the reason.",
    ),
    exception_row(
        "nccl-aborted",
        r"NCCL communicator was aborted on rank (?P<rank>\d+)",
        _PEER_GONE,
        "The group was shut down after an earlier failure of it.",
        "Look for the first failure, on this rank or another.",
    ),
    exception_row(
        "nccl-remote-error",
        r"(?s)NCCL error.*(?:remote process exited or there was a network error|ncclRemoteError)",
        _PEER_GONE,
        "A peer's process ended, or the network between broke.",
        "Look for the first failure on another rank; if there is none, test the network between the hosts.",
    ),
    exception_row(
        "nccl-system-error",
        r"(?s)NCCL error.*(?:unhandled system error|ncclSystemError)",
        (INITIATING, INFRASTRUCTURE, PERHAPS, EXCEPTION),
        "A system call of NCCL failed: network, shared memory or files.",
        "Run with NCCL_DEBUG=WARN: the line before names the call.",
    ),
    exception_row(
        "nccl-error",
        r"NCCL error|^\S*DistBackendError\b|ncclUnhandledCudaError|ncclInternalError",
        (INITIATING, EITHER, PERHAPS, EXCEPTION),
        "NCCL failed.",
        "Run with NCCL_DEBUG=WARN: the lines before tell the reason.",
    ),
    exception_row(
        "mpi-error",
        r"mpi4py\.MPI\.Exception|MPI_ERR_PROC_FAILED",
        (INITIATING, EITHER, PERHAPS, EXCEPTION),
        "A call of MPI failed.",
        "The class of the error is in its message.",
    ),
    exception_row(
        "connection-lost",
        r"^(?:\w+\.)*(?:BrokenPipeError|ConnectionResetError|ConnectionAbortedError)\b",
        _PEER_GONE,
        "The process at the other end of a connection ended before.",
        "Look for the first failure in another process.",
    ),
    exception_row(
        "worker-pipe-closed",
        r"^EOFError\b",
        _PEER_GONE,
        "A process of multiprocessing, such as a DataLoader worker, ended before its answer.",
        "Look for the first failure in another process.",
        frame_file=r"/multiprocessing/",
    ),
    exception_row(
        "connection-refused",
        r"^(?:\w+\.)*ConnectionRefusedError\b|^RuntimeError: Connection refused",
        _PEER_GONE,
        "Nothing listens at the address: the process that should has ended or was not started.",
        "Look at that process; check address and port.",
    ),
)
