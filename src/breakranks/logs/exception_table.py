"""The table of exceptions: patterns over ``Type: message``, the more specific rows first."""

from __future__ import annotations

from breakranks.logs.known_row import (
    EITHER,
    EXCEPTION,
    EXIT,
    IN_BOTH,
    INFRASTRUCTURE,
    LAUNCHER,
    NO,
    OUT_OF_MEMORY,
    PERHAPS,
    SIGNAL,
    TIMEOUT,
    WORKLOAD,
    YES,
    KnownRow,
    exception_row,
)
from breakranks.logs.log_events import CASCADE, INITIATING, TEARDOWN
from breakranks.logs.peer_exceptions import PEER_EXCEPTIONS, TIMEOUT_EXCEPTIONS

_BUG = (INITIATING, WORKLOAD, NO, EXCEPTION)
_OOM = (INITIATING, WORKLOAD, NO, OUT_OF_MEMORY)
_ASYNC = (INITIATING, WORKLOAD, PERHAPS, EXCEPTION)
_PEER_GONE = (CASCADE, EITHER, PERHAPS, EXCEPTION)
_LATE = (INITIATING, EITHER, PERHAPS, TIMEOUT)
_LAUNCHER = (TEARDOWN, EITHER, PERHAPS, LAUNCHER)
_LOADER_WORKER = r"DataLoader worker \(pid\(?s?\)? ?(?P<pid>[\d, ]+)\) "
_SYNC = "Run again with `breakranks run --sync-cuda -- …`: the traceback then shows the call that fails."

_LAUNCHERS: tuple[KnownRow, ...] = (
    exception_row(
        "launcher-child-failed",
        r"ChildFailedError\b",
        _LAUNCHER,
        "The launcher reports that a process of it failed; this traceback is the launcher's own.",
        "Look at the rank that its summary names, and at what other ranks raised before.",
    ),
    exception_row(
        "launcher-signalled",
        r"SignalException: Process \d+ got signal: (?P<signal>\d+)",
        (TEARDOWN, INFRASTRUCTURE, YES, LAUNCHER),
        "The launcher itself was told to end: by the scheduler, kill, Ctrl-C or a closed terminal.",
        "See the scheduler's record of the job (sacct -j JOB); start long jobs under tmux or sbatch.",
    ),
    exception_row(
        "spawn-child-failed",
        r"ProcessRaisedException\b|ProcessExitedException\b",
        _LAUNCHER,
        "torch.multiprocessing.spawn reports that a process of it failed.",
        "The traceback of the process stands in its message, or its signal.",
    ),
    exception_row(
        "launcher-command-failed",
        r"CalledProcessError: Command .*(?:non-zero exit status (?P<code>\d+)|died with <Signals\.(?P<signal>\w+))",
        _LAUNCHER,
        "The launcher reports the exit status of the command that it started.",
        "Look at what the command printed before.",
        frame_file=r"/(?:accelerate|deepspeed)/(?:commands|launchers?)\b",
    ),
    exception_row(
        "msrun-failed",
        r"RuntimeError: Distributed job exited with exception",
        _LAUNCHER,
        "msrun reports that a worker of it failed.",
        "Look at the worker_N.log of the rank that failed first.",
    ),
    exception_row(
        "mindspore-nodes-timed-out",
        r"total number of timed out node is \d+\. Timed out node list is: (?:\[const vector\])?\{(?P<ranks>[\d, ]+)\}",
        (CASCADE, EITHER, PERHAPS, TIMEOUT),
        "MindSpore's scheduler no longer hears from these nodes: their processes ended or hang.",
        "Look at the worker_N.log of the first of them.",
    ),
    exception_row(
        "rendezvous-timeout",
        r"RendezvousTimeoutError\b",
        (INITIATING, INFRASTRUCTURE, PERHAPS, TIMEOUT),
        "Not all hosts came to the launcher's rendezvous in time.",
        "Compare --nnodes and --rdzv-endpoint on all hosts; test the port from each with nc.",
    ),
    exception_row(
        "rendezvous-lost",
        r"RendezvousConnectionError\b|RendezvousClosedError\b|RendezvousGracefulExitError\b",
        _PEER_GONE,
        "The launcher lost its rendezvous: the host that serves it, mostly the first, ended or cannot be reached.",
        "Look at the first host's log.",
    ),
    exception_row(
        "ray-worker-died",
        r"^ray\.exceptions\.(?:RayActorError|Actor(?:Died|Unavailable)Error|WorkerCrashedError|NodeDiedError"
        r"|LocalRayletDiedError)",
        (CASCADE, EITHER, PERHAPS, LAUNCHER),
        "Ray reports that a worker or its host ended.",
        "Look at what the worker printed before, and for “killed due to memory pressure”.",
    ),
    exception_row(
        "interrupted",
        r"^(?:KeyboardInterrupt|SystemExit)\b",
        (TEARDOWN, EITHER, YES, EXIT),
        "The process was interrupted or asked to exit.",
        "If nothing else failed, Ctrl-C or the program itself ended the job.",
    ),
)

_MEMORY: tuple[KnownRow, ...] = (
    exception_row(
        "cuda-out-of-memory",
        r"(?:torch\.(?:cuda\.)?OutOfMemoryError\b|CUDA out of memory|CUDA error: out of memory|NPU out of memory"
        r"|HIP out of memory|XPU out of memory)(?:.*?Tried to allocate (?P<size>[\d.]+ \w+))?",
        _OOM,
        "The GPU has no memory left.",
        "Use a smaller batch, activation checkpointing or more sharding; if much is reserved but unallocated, set "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; look with nvidia-smi for another process on the GPU.",
        where=IN_BOTH,
    ),
    exception_row(
        "ray-out-of-memory",
        r"ray\.exceptions\.OutOfMemoryError|killed due to (?:memory pressure|the node running low on memory)",
        _OOM,
        "Ray killed workers because the memory of the host ran low.",
        "Hold less in each worker or start fewer; RAY_memory_usage_threshold sets when Ray does so.",
        where=IN_BOTH,
    ),
    exception_row(
        "device-out-of-memory",
        r"CU(?:BLAS|DNN)_STATUS_ALLOC_FAILED|Memory not enough|Allocate memory failed|RESOURCE_EXHAUSTED",
        _OOM,
        "A library could not allocate memory on the device.",
        "Use a smaller batch; look with nvidia-smi for another process on the device.",
    ),
    exception_row(
        "loader-worker-killed",
        _LOADER_WORKER + r"(?:is killed by signal: Killed|exited unexpectedly with exit code (?:137|-9))",
        (INITIATING, WORKLOAD, PERHAPS, OUT_OF_MEMORY),
        "A DataLoader worker was killed, likely because the host's memory ran out.",
        "Lower num_workers and prefetch_factor; check the kernel's log (dmesg) and the memory limit of the container.",
    ),
    exception_row(
        "loader-shared-memory",
        _LOADER_WORKER + r"is killed by signal: Bus error|Unexpected bus error encountered in worker"
        r"|unable to (?:open|mmap|allocate) .*shared memory|unable to write to file </torch_",
        (INITIATING, INFRASTRUCTURE, NO, SIGNAL),
        "/dev/shm is full: DataLoader workers pass their batches through it.",
        "Start the container with --shm-size=8g or --ipc=host, or lower num_workers.",
        where=IN_BOTH,
    ),
    exception_row(
        "loader-worker-died",
        _LOADER_WORKER + r"(?:is killed by signal: (?P<signal>[\w ]+)|exited unexpectedly)",
        (INITIATING, WORKLOAD, PERHAPS, SIGNAL),
        "A DataLoader worker ended by a signal: native code in the data set crashed.",
        "Run with num_workers=0 to see the traceback.",
    ),
    exception_row(
        "host-out-of-memory",
        r"^(?:\w+\.)*(?:MemoryError|_ArrayMemoryError)\b|std::bad_alloc|DefaultCPUAllocator: (?:can't|not enough)"
        r"|Cannot allocate memory",
        (INITIATING, WORKLOAD, NO, OUT_OF_MEMORY),
        "The host's memory, or the limit of the container, is exhausted.",
        "Look at what grows: data held per rank and per DataLoader worker; compare with the memory limit.",
    ),
    exception_row(
        "disk-full",
        r"No space left on device",
        (INITIATING, INFRASTRUCTURE, NO, EXCEPTION),
        "A file system is full.",
        "See df -h of the path in the message, /tmp and /dev/shm.",
    ),
    exception_row(
        "outside-service",
        r"^(?:requests|urllib3|httpx|httpcore|aiohttp|botocore|huggingface_hub|wandb|urllib)\.\S*"
        r"(?:Error|Timeout|Exception)\b",
        (INITIATING, INFRASTRUCTURE, PERHAPS, EXCEPTION),
        "A service outside of the job (a model hub, a store of files, a tracker of runs) did not answer as it should.",
        "Test the service from the host; keep data in local files (HF_HUB_OFFLINE=1, WANDB_MODE=offline).",
    ),
    exception_row(
        "too-many-files",
        r"Too many open files|received 0 items of ancdata",
        (INITIATING, INFRASTRUCTURE, NO, EXCEPTION),
        "The limit of open files of the process is reached.",
        "Raise ulimit -n, or torch.multiprocessing.set_sharing_strategy('file_system').",
    ),
)

_CUDA: tuple[KnownRow, ...] = (
    exception_row(
        "cuda-device-assert",
        r"CUDA error: device-side assert triggered|CUDA error 710\b",
        _ASYNC,
        "A check in a kernel failed, mostly an index out of range. CUDA reports it later, so the line of the traceback "
        "is likely wrong.",
        _SYNC + " A line “Assertion `…` failed” before it names the check.",
    ),
    exception_row(
        "cuda-illegal-memory",
        r"CUDA error: (?:an illegal memory access|misaligned address|unspecified launch failure|an illegal instruction"
        r"|invalid program counter|invalid address space|hardware stack error)",
        _ASYNC,
        "A kernel touched memory that it may not. CUDA reports it later, so the line of the traceback is likely wrong.",
        _SYNC + " compute-sanitizer finds the kernel.",
    ),
    exception_row(
        "cuda-hardware",
        r"CUDA error: (?:uncorrectable (?:ECC|NVLink) error|unknown error|GPU is lost|no CUDA-capable device"
        r"|all CUDA-capable devices are busy|.*system not yet initialized)",
        (INITIATING, INFRASTRUCTURE, PERHAPS, EXCEPTION),
        "The GPU or its driver failed.",
        "Look for Xid lines in dmesg, test the host and take it out.",
    ),
    exception_row(
        "cuda-no-kernel",
        r"CUDA error: (?:no kernel image is available|device kernel image is invalid)|driver version is insufficient",
        (INITIATING, INFRASTRUCTURE, NO, EXCEPTION),
        "This build of torch or of an extension does not fit the GPU or its driver.",
        "Install a build for this GPU and driver.",
    ),
    exception_row(
        "cuda-invalid-device",
        r"CUDA error: invalid device ordinal",
        _BUG,
        "The rank chose a GPU that does not exist on its host.",
        "Use LOCAL_RANK, not RANK, for set_device; check CUDA_VISIBLE_DEVICES and processes per host.",
    ),
    exception_row(
        "cuda-error",
        r"CUDA error(?: \d+)?: (?P<error>[^\n]+)|CUBLAS_STATUS_\w+|CUDNN_STATUS_\w+|NPU (?:function )?error",
        _ASYNC,
        "A CUDA call failed. An error of an earlier kernel shows here too, so the line of the traceback may be wrong.",
        _SYNC,
    ),
)

# Ascend's communication library HCCL; the texts are those of CANN 7 and 8 in issues on public trackers.
_ASCEND: tuple[KnownRow, ...] = (
    exception_row(
        "hccl-notify-timeout",
        r"EI0002:?\b.*Notify register times out|Notify register has not received the Notify record",
        _LATE,
        "A collective did not complete on the NPU: the peer did not come to it, or failed.",
        "Look for ranks with another error, and for ranks that reported none. `breakranks watch --on-hang 300` asks "
        "the ranks before the timeout (HCCL_EXEC_TIMEOUT).",
        where=IN_BOTH,
    ),
    exception_row(
        "hccl-inconsistent",
        r"EI0005:?\b.*(?:inconsistent|not consistent|not match)",
        _BUG,
        "Ranks called different collectives, or with different sizes.",
        "Compare the two calls that the message names.",
        where=IN_BOTH,
    ),
    exception_row(
        "hccl-connect-timeout",
        r"EI0006:?\b.*Getting socket times out",
        _LATE,
        "A peer did not come to the set-up of the group in time (HCCL_CONNECT_TIMEOUT).",
        "Find the rank that is stuck or ended; if all reported it, compare their times and test the network.",
        where=IN_BOTH,
    ),
    exception_row(
        "npu-out-of-memory",
        r"EL0004:?\b.*(?:allocate memory|[Mm]emory allocation)",
        _OOM,
        "The NPU has no memory left.",
        "Use a smaller batch or recomputation; look with npu-smi for another process on the device.",
        where=IN_BOTH,
    ),
    exception_row(
        "npu-operator-timeout",
        r"aicore (?:execution times out|timeout)",
        (INITIATING, EITHER, PERHAPS, TIMEOUT),
        "An operator did not end on the NPU.",
        "Run again with ASCEND_LAUNCH_BLOCKING=1 to see which one.",
    ),
)

# MEMORY before CUDA: "CUDA error: out of memory". TIMEOUTS before PEERS: a DistStoreError may be a timeout.
EXCEPTION_TABLE: tuple[KnownRow, ...] = (*_LAUNCHERS, *_ASCEND, *_MEMORY, *_CUDA, *TIMEOUT_EXCEPTIONS, *PEER_EXCEPTIONS)
