"""The table of known lines but exceptions and NCCL's: the kernel, the GPU driver, schedulers, native code."""

from __future__ import annotations

from breakranks.logs.known_row import (
    EITHER,
    EXCEPTION,
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
    known_row,
)
from breakranks.logs.log_events import CASCADE, INITIATING, NOTE, TEARDOWN

_SCHEDULER = (INITIATING, INFRASTRUCTURE, YES, LAUNCHER)
_HOST_OOM = (INITIATING, WORKLOAD, NO, OUT_OF_MEMORY)
_NATIVE_BUG = (INITIATING, WORKLOAD, PERHAPS, SIGNAL)

_MEMORY_ADVICE = (
    "Lower what each rank and DataLoader worker holds, or ask for more memory; `breakranks watch` shows its growth."
)
_KERNEL: tuple[KnownRow, ...] = (
    known_row(
        "cgroup-out-of-memory",
        r"Memory cgroup out of memory: Killed process (?P<pid>\d+) \((?P<process>[^)]*)\)",
        _HOST_OOM,
        "The kernel killed the process: the memory limit of its container or job was reached.",
        _MEMORY_ADVICE,
    ),
    known_row(
        "kernel-out-of-memory",
        r"[Oo]ut of memory: Killed process (?P<pid>\d+) \((?P<process>[^)]*)\)"
        r"|oom-kill:constraint=\w+.*task=(?P<task>[^,]*),pid=(?P<task_pid>\d+)",
        _HOST_OOM,
        "The kernel killed the process: the host had no memory left.",
        _MEMORY_ADVICE,
    ),
    known_row(
        "slurm-out-of-memory",
        r"Detected \d+ oom[_-]kill event|task \d+: Out Of Memory|[Ee]xceeded (?:job |step )?memory limit",
        _HOST_OOM,
        "The kernel killed processes of the job: its memory limit was reached.",
        "Ask for more (--mem, --mem-per-cpu), or hold less in each rank.",
    ),
    known_row(
        "kernel-segfault",
        r"(?P<process>\S{1,64})\[(?P<pid>\d+)\]:? (?:segfault at |general protection fault)"
        r"(?:.*? in (?P<library>[^\s\[]+))?",
        (NOTE, WORKLOAD, PERHAPS, SIGNAL),
        "The kernel reports where native code made an access that it may not.",
        "gdb shows the stack of the core dump, if there is one.",
    ),
)

_GPU_ADVICE = "Take the host out, test it with dcgmi diag, and start again without it."
_CODE_ADVICE = "Run again with `breakranks run --sync-cuda -- …`, or under compute-sanitizer."
_HARDWARE = (INITIATING, INFRASTRUCTURE, YES, EXCEPTION)
_KERNEL_CODE = (INITIATING, WORKLOAD, PERHAPS, EXCEPTION)
# Numbers and meanings as in NVIDIA's list of Xid errors.
_XIDS: tuple[tuple[str, tuple[str, str, str, str], str, str], ...] = (
    ("13", _KERNEL_CODE, "an exception in a kernel: an access out of range, mostly", _CODE_ADVICE),
    ("31", _KERNEL_CODE, "a kernel accessed an address that is not mapped", _CODE_ADVICE),
    ("32", _HARDWARE, "a corrupted push buffer: the driver, the PCIe link or memory", _GPU_ADVICE),
    ("38", _HARDWARE, "a fault of the driver's firmware", _GPU_ADVICE),
    ("43", (CASCADE, WORKLOAD, PERHAPS, EXCEPTION), "the GPU stopped the process after an earlier error", _CODE_ADVICE),
    ("45", (CASCADE, EITHER, PERHAPS, EXCEPTION), "clean-up after a process that ended or failed before", _CODE_ADVICE),
    ("48", _HARDWARE, "an uncorrectable (double bit) error of its memory", _GPU_ADVICE),
    ("61", _HARDWARE, "a breakpoint in an internal micro-controller", _GPU_ADVICE),
    ("62", _HARDWARE, "an internal micro-controller halted", _GPU_ADVICE),
    ("63", (NOTE, INFRASTRUCTURE, YES, EXCEPTION), "a row of memory was remapped", "Reset the GPU when it is idle."),
    ("64", _HARDWARE, "a row of memory could not be remapped", _GPU_ADVICE),
    ("74", _HARDWARE, "an error of an NVLink", _GPU_ADVICE),
    ("79", _HARDWARE, "the GPU has fallen off the bus", _GPU_ADVICE),
    ("92", (NOTE, INFRASTRUCTURE, YES, EXCEPTION), "many correctable errors of memory", _GPU_ADVICE),
    ("94", _HARDWARE, "a contained uncorrectable error of memory: this process must end", _GPU_ADVICE),
    ("95", _HARDWARE, "an uncontained uncorrectable error of memory", _GPU_ADVICE),
    ("109", _HARDWARE, "a context switch on the GPU timed out", _GPU_ADVICE),
    ("119|120", _HARDWARE, "the GPU's system processor (GSP) did not answer", _GPU_ADVICE),
    ("140", _HARDWARE, "an unrecovered error of memory", _GPU_ADVICE),
    ("14[3-9]|150", _HARDWARE, "an error of the NVLink fabric", _GPU_ADVICE),
    (r"\d+", (NOTE, EITHER, PERHAPS, EXCEPTION), "see NVIDIA's list of Xid errors", _GPU_ADVICE),
)


def _xid_row(numbers: str, labels: tuple[str, str, str, str], words: str, advice: str) -> KnownRow:
    name = {r"\d+": "other", "119|120": "119", "14[3-9]|150": "nvlink"}.get(numbers, numbers)
    return known_row(
        f"gpu-xid-{name}",
        rf"NVRM: Xid \(PCI:(?P<device>[\w:.]+)\): (?P<xid>{numbers})\b(?:.*?pid='?(?P<pid>\d+))?",
        labels,
        f"The driver reports about the GPU: {words}.",
        advice,
    )


_SCHEDULERS: tuple[KnownRow, ...] = (
    known_row(
        "slurm-time-limit",
        r"\*\*\* (?:STEP|JOB) (?P<job>\S+) ON (?P<host>\S+) CANCELLED AT \S+ DUE TO TIME LIMIT",
        (INITIATING, INFRASTRUCTURE, YES, LAUNCHER),
        "Slurm ended the job at its time limit.",
        "Ask for more time (--time), or save checkpoints and start again from the last one.",
    ),
    known_row(
        "slurm-preempted",
        r"\*\*\* (?:STEP|JOB) (?P<job>\S+) ON (?P<host>\S+) CANCELLED AT \S+ DUE TO PREEMPTION",
        _SCHEDULER,
        "Slurm ended the job to make room for another one.",
        "Start again from the last checkpoint; --requeue does so by itself.",
    ),
    known_row(
        "slurm-requeued",
        r"\*\*\* (?:STEP|JOB) (?P<job>\S+) ON (?P<host>\S+) CANCELLED AT \S+ DUE TO JOB REQUEUE",
        _SCHEDULER,
        "The job was put back into Slurm's queue, and starts again by itself.",
        "Let it start from its last checkpoint.",
    ),
    known_row(
        "slurm-node-failure",
        r"\*\*\* (?:STEP|JOB) (?P<job>\S+) ON (?P<host>\S+) CANCELLED AT \S+ DUE TO NODE FAILURE"
        r"|srun: error: Node failure on (?P<node>\S+)",
        _SCHEDULER,
        "A host of the job failed.",
        "See the state of the host (sinfo -R) and start again without it (--exclude).",
    ),
    known_row(
        "slurm-cancelled",
        r"\*\*\* (?:STEP|JOB) (?P<job>\S+) ON (?P<host>\S+) CANCELLED AT ",
        (TEARDOWN, EITHER, PERHAPS, LAUNCHER),
        "The step was ended: by scancel, or by srun after a task failed.",
        "If no task failed before, see who cancelled it: sacct -j JOB -o JobID,State,Reason.",
    ),
    known_row(
        "slurm-step-aborted",
        r"srun: Job step aborted|srun: .*Terminating (?:StepId=|job step)",
        (TEARDOWN, EITHER, PERHAPS, LAUNCHER),
        "srun ends the tasks that are left.",
        "Look for the task that failed before.",
    ),
    known_row(
        "launcher-signalled-line",
        r"Received (?:Signals\.)?(?P<signal>SIG\w+|\d+) death signal, shutting down workers",
        (TEARDOWN, INFRASTRUCTURE, YES, LAUNCHER),
        "The launcher itself was told to end: by the scheduler, kill, Ctrl-C or a closed terminal.",
        "See the scheduler's record of the job; start long jobs under tmux or sbatch.",
    ),
    known_row(
        "process-not-ended",
        r"Process (?P<pid>\d+) did not exit after (?P<signal>\w+) within",  # torch 2.13
        (NOTE, INFRASTRUCTURE, PERHAPS, LAUNCHER),
        "A process did not end even when it was killed: it hangs in a file system or the GPU's driver.",
        "See what it waits for: `breakranks stacks PID`, dmesg; its host may need a reboot.",
    ),
    known_row(
        "launcher-heartbeat",
        r"node '(?P<node>[^']*)' has failed to send a keep-alive heartbeat to the rendezvous",
        (CASCADE, INFRASTRUCTURE, PERHAPS, LAUNCHER),
        "A host's launcher no longer reaches the rendezvous: the host that serves it ended, or the network is cut.",
        "Look at the first host's log.",
    ),
    known_row(
        "mpi-lost-host",
        r"(?:ORTE|PRTE) has lost communication with a remote daemon|(?:ORTE|PRTE) daemon has unexpectedly failed",
        _SCHEDULER,
        "mpirun lost one of its hosts.",
        "Test that the host is up and reached by ssh: `breakranks hosts`.",
    ),
    known_row(
        "mindspore-node-timeout",
        r"The node: (?P<rank>\d+) is timed out\. It may exit with exception",
        (CASCADE, EITHER, PERHAPS, TIMEOUT),
        "MindSpore's scheduler no longer hears from this rank: its process ended or hangs.",
        "Look at the worker_N.log of this rank.",
    ),
    known_row(
        "msrun-ending-others",
        r"There's worker exits with exception, kill all other workers|Scheduler process \d+ exit with exception",
        (TEARDOWN, EITHER, PERHAPS, LAUNCHER),
        "msrun ends the workers that are left.",
        "Look for the worker that failed before.",
    ),
)

_NATIVE: tuple[KnownRow, ...] = (
    known_row(
        "cuda-device-assert-line",
        r"block: \[[\d,]+\], thread: \[[\d,]+\],? Assertion `(?P<check>.*?)[`'] failed",
        (INITIATING, WORKLOAD, NO, EXCEPTION),
        "A check in a kernel failed: mostly an index that is out of range.",
        "Compare the largest index with the size of the table (labels with classes, tokens with the vocabulary); "
        "`breakranks run --sync-cuda -- …` shows the call.",
    ),
    known_row(
        "native-assert",
        r"Assertion `(?P<check>.*?)' failed",
        _NATIVE_BUG,
        "A check in native code failed, and the process was aborted.",
        "The line names file and function; gdb shows the stack of a core dump.",
    ),
    known_row(
        "heap-corrupted",
        r"^(?:\*\*\* Error in .*: )?(?P<check>(?:free|malloc|realloc|munmap_chunk|calloc|malloc_consolidate)\(\): .*"
        r"|double free or corruption.*|corrupted (?:size|double-linked).*)",
        _NATIVE_BUG,
        "The C library found its heap corrupted: native code wrote outside its memory, earlier than this.",
        "A core dump shows in gdb where it was noticed; run the extension under AddressSanitizer or MALLOC_CHECK_=3.",
    ),
    known_row(
        "stack-smashed",
        r"\*\*\* (?:stack smashing|buffer overflow) detected \*\*\*",
        _NATIVE_BUG,
        "Native code wrote beyond a buffer.",
        "gdb shows the stack of a core dump.",
    ),
    known_row(
        "terminate-at-exit",
        r"terminate called without an active exception",
        (TEARDOWN, EITHER, PERHAPS, SIGNAL),
        "The process ended while a thread of it still ran, as gloo's does. This is not the reason.",
        "Look at what it printed before.",
    ),
    known_row(
        "library-missing",
        r"error while loading shared libraries: (?P<library>[^:\s]+)",
        (INITIATING, INFRASTRUCTURE, NO, EXCEPTION),
        "A shared library was not found on this host.",
        "Use the same environment on all hosts; check LD_LIBRARY_PATH.",
    ),
)

_COLLECTIVES: tuple[KnownRow, ...] = (
    known_row(
        "nccl-async-error",
        r"raised the following async exception: (?P<error>.*)",
        (CASCADE, EITHER, PERHAPS, EXCEPTION),
        "NCCL reports that a collective in flight failed: mostly a peer ended or the network broke.",
        "Look for the first failure on another rank.",
    ),
    known_row(
        "nccl-process-taken-down",
        r"To avoid (?:data|this) inconsistency, we are taking the entire process down",
        (TEARDOWN, EITHER, PERHAPS, TIMEOUT),
        "The watchdog ends this process after a collective failed.",
        "Look at the collective that failed, before it.",
    ),
    known_row(
        "nccl-watchdog-stuck",
        r"ProcessGroup\w+'s watchdog got stuck for (?P<seconds>\d+) seconds",
        (INITIATING, EITHER, PERHAPS, TIMEOUT),
        "The watchdog itself was blocked in a call of CUDA or NCCL, or waits for the GIL: the GPU hangs, or a thread "
        "holds the GIL in native code.",
        "`breakranks watch --on-hang 300` shows the native stacks; TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC raises the limit.",
    ),
    known_row(
        "gil-not-acquired",
        r"Could not acquire GIL within \d+ ms on exit",
        (NOTE, WORKLOAD, PERHAPS, TIMEOUT),
        "Python's lock was held while the process was to end: a thread is stuck in native code with the GIL.",
        "`breakranks watch --on-hang 300` names the thread that holds it.",
    ),
    known_row(
        "store-gone-line",
        r'Failed to check the "should dump" flag on TCPStore',
        (CASCADE, EITHER, PERHAPS, TIMEOUT),
        "The store of rank 0 cannot be reached: rank 0's process ended before.",
        "Look at rank 0's log.",
    ),
)

LINE_TABLE: tuple[KnownRow, ...] = (
    *_KERNEL,
    *(_xid_row(*entry) for entry in _XIDS),
    *_SCHEDULERS,
    *_NATIVE,
    *_COLLECTIVES,
)
