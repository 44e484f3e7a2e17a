"""Each row of the tables of known lines and exceptions reads its example, and no row reads a healthy log."""

from __future__ import annotations

import re
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakranks.logs import launcher_lines, watchdog_lines
from breakranks.logs.exception_rows import classify_exception
from breakranks.logs.exception_table import EXCEPTION_TABLE
from breakranks.logs.exit_meanings import meaning, signal_of
from breakranks.logs.known_lines import ROWS, TRIGGERS, read_known, row_of
from breakranks.logs.known_lines_table import LINE_TABLE
from breakranks.logs.known_row import IN_BOTH, OUT_OF_MEMORY, TIMEOUT
from breakranks.logs.launcher_lines import LauncherReader
from breakranks.logs.log_events import CASCADE, INITIATING, TEARDOWN, DumpEvent, KnownEvent, LogLine, Raised
from breakranks.logs.nccl_rows import NCCL_ROWS
from breakranks.logs.watchdog_lines import read_timeout
from breakranks.snapshot.model import Frame

ALL_TRIGGERS = (*TRIGGERS, *watchdog_lines.TRIGGERS, *launcher_lines.TRIGGERS)
NCCL = "n1:5776:5902 [3] misc/socket.cc:58 NCCL WARN "
SLURM = "slurmstepd-n1: error: *** "
XID = "[ 1843.3] NVRM: Xid (PCI:0000:3b:00): "

# Real lines of Slurm 22.05, the shell and glibc; the kernel's, NCCL's and Ascend's are from public trackers.
LINE_EXAMPLES: list[tuple[str, str, dict[str, str]]] = [
    (
        "cgroup-out-of-memory",
        "[123.4] Memory cgroup out of memory: Killed process 4711 (python3) total-vm:9000kB, anon-rss:8000kB",
        {"pid": "4711", "process": "python3"},
    ),
    (
        "kernel-out-of-memory",
        "Jan 01 12:00:00 n1 kernel: Out of memory: Killed process 4711 (pt_main_thread) total-vm:9000kB",
        {"pid": "4711", "process": "pt_main_thread"},
    ),
    (
        "kernel-out-of-memory",
        "[1.0] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,task=python,pid=4711,uid=0",
        {"task": "python", "task_pid": "4711"},
    ),
    (
        "slurm-out-of-memory",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=12.0. Some of the step tasks have been OOM Killed.",
        {},
    ),
    ("slurm-out-of-memory", "slurmstepd: error: Detected 2 oom-kill event(s) in step 9.0 cgroup.", {}),
    ("slurm-out-of-memory", "srun: error: n1: task 2: Out Of Memory", {}),
    ("slurm-out-of-memory", "slurmstepd: error: Exceeded step memory limit at some point.", {}),
    (
        "kernel-segfault",
        "[9.1] python[4711]: segfault at 8 ip 00007f sp 00007f error 4 in libtorch_cpu.so[7f0000+10000]",
        {"pid": "4711", "process": "python", "library": "libtorch_cpu.so"},
    ),
    ("kernel-segfault", "[9.1] traps: python[47] general protection fault ip:7f sp:7f error:0 in libc.so.6[7f]", {}),
    ("gpu-xid-13", XID + "13, pid=4711, name=python, Graphics SM Warp Exception", {"xid": "13", "pid": "4711"}),
    ("gpu-xid-31", XID + "31, pid='4711', name=python, MMU Fault", {"device": "0000:3b:00", "pid": "4711"}),
    ("gpu-xid-32", XID + "32, pid=1, Channel ID 0000", {}),
    ("gpu-xid-38", XID + "38, pid=1", {}),
    ("gpu-xid-43", XID + "43, pid=4711, Ch 00000010", {}),
    ("gpu-xid-45", XID + "45, pid=4711, name=python3, Ch 00000001 caused by previous Xid 149", {"xid": "45"}),
    ("gpu-xid-48", XID + "48, pid=1, An uncorrectable double bit error (DBE) has been detected", {}),
    ("gpu-xid-61", XID + "61, pid=1", {}),
    ("gpu-xid-62", XID + "62, pid=1", {}),
    ("gpu-xid-63", XID + "63, Row Remapper: New row marked for remapping", {}),
    ("gpu-xid-64", XID + "64, Row remapper failure", {}),
    ("gpu-xid-74", XID + "74, pid=1, NVLink: fatal error detected on link 2", {}),
    ("gpu-xid-79", XID + "79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.", {"xid": "79"}),
    ("gpu-xid-92", XID + "92, High single-bit ECC error rate", {}),
    ("gpu-xid-94", XID + "94, pid=1, Contained: CE User Channel", {}),
    ("gpu-xid-95", XID + "95, pid=1, Uncontained: LTC TAG", {}),
    ("gpu-xid-109", XID + "109, pid=1, CTX SWITCH TIMEOUT", {}),
    ("gpu-xid-119", XID + "119, pid=1, Timeout waiting for RPC from GSP!", {"xid": "119"}),
    ("gpu-xid-140", XID + "140, pid=1", {}),
    ("gpu-xid-nvlink", XID + "145, NETIR", {"xid": "145"}),
    ("gpu-xid-other", XID + "999, something new", {"xid": "999"}),
    (
        "slurm-time-limit",
        SLURM + "STEP 12.0 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***",
        {"job": "12.0", "host": "n1"},
    ),
    (
        "slurm-preempted",
        SLURM + "JOB 1877080 ON r002 CANCELLED AT 2026-09-25T10:25:59 DUE TO PREEMPTION ***",
        {"job": "1877080", "host": "r002"},
    ),
    ("slurm-requeued", SLURM + "JOB 8 ON n1 CANCELLED AT 2026-11-19T21:16:01 DUE TO JOB REQUEUE ***", {"job": "8"}),
    (
        "slurm-node-failure",
        SLURM + "JOB 8 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***",
        {"host": "n1"},
    ),
    ("slurm-node-failure", "srun: error: Node failure on n7", {"node": "n7"}),
    ("slurm-cancelled", SLURM + "STEP 7.0 ON n1 CANCELLED AT 2026-11-19T21:15:59 ***", {"job": "7.0"}),
    ("slurm-step-aborted", "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.", {}),
    ("slurm-step-aborted", "srun: launch/slurm: _step_signal: Terminating StepId=2.0", {}),
    (
        "launcher-signalled-line",
        "W1119 21:03:25.1 9354 torch/distributed/elastic/agent/server/api.py:9] Received Signals.SIGTERM death signal, "
        "shutting down workers",
        {"signal": "SIGTERM"},
    ),
    (
        "process-not-ended",
        "W x] Process 12 did not exit after SIGKILL within 30s; abandoning and continuing teardown.",
        {"pid": "12", "signal": "SIGKILL"},
    ),
    (
        "ray-out-of-memory",
        "(raylet) node_manager.cc:3040: 1 Workers (tasks / actors) killed due to memory pressure (OOM)",
        {},
    ),
    ("launcher-signalled-line", "Received 1 death signal, shutting down workers", {"signal": "1"}),
    (
        "launcher-heartbeat",
        "The node 'n2_123_0' has failed to send a keep-alive heartbeat to the rendezvous 'none' due to an error of "
        "type RendezvousConnectionError.",
        {"node": "n2_123_0"},
    ),
    ("mpi-lost-host", "ORTE has lost communication with a remote daemon.", {}),
    ("mpi-lost-host", "An ORTE daemon has unexpectedly failed after launch and before", {}),
    (
        "mindspore-node-timeout",
        "[ERROR] DISTRIBUTED(8804,7f78b599e6c0,python):2026-11-19-20:59:09.434.516 [mindspore/ccsrc/cluster/topology/"
        "meta_server_node.cc:548] UpdateTopoState] The node: 1 is timed out. It may exit with exception, please check "
        "this node's log.",
        {"rank": "1"},
    ),
    ("msrun-ending-others", "There's worker exits with exception, kill all other workers.", {}),
    (
        "cuda-device-assert-line",
        "../aten/src/ATen/native/cuda/Indexing.cu:1289: indexSelectLargeIndex: block: [195,0,0], thread: [96,0,0] "
        "Assertion `srcIndex < srcSelectDimSize` failed.",
        {"check": "srcIndex < srcSelectDimSize"},
    ),
    ("native-assert", "a: a.c:3: main: Assertion `c==7' failed.", {"check": "c==7"}),
    ("heap-corrupted", "free(): invalid pointer", {"check": "free(): invalid pointer"}),
    ("heap-corrupted", "malloc(): corrupted top size", {}),
    ("heap-corrupted", "double free or corruption (!prev)", {}),
    ("heap-corrupted", "corrupted size vs. prev_size", {}),
    ("heap-corrupted", "malloc_consolidate(): invalid chunk size", {}),
    ("stack-smashed", "*** stack smashing detected ***: terminated", {}),
    ("stack-smashed", "*** buffer overflow detected ***: terminated", {}),
    ("terminate-at-exit", "terminate called without an active exception", {}),
    (
        "library-missing",
        "python: error while loading shared libraries: libcudart.so.12: cannot open shared object file: No such file",
        {"library": "libcudart.so.12"},
    ),
    (
        "nccl-async-error",
        "[rank4]:[E1016 x ProcessGroupNCCL.cpp:563] [Rank 4] Collective WorkNCCL(SeqNum=5, "
        "OpType=ALLREDUCE, NumelIn=1, "
        "NumelOut=1, Timeout(ms)=600000) raised the following async exception: NCCL error: remote process exited",
        {},
    ),
    (
        "nccl-process-taken-down",
        "[rank4]:[E1016 03:31:38.9 ProcessGroupNCCL.cpp:627] [Rank 4] To avoid data inconsistency, we are taking the "
        "entire process down.",
        {},
    ),
    ("nccl-process-taken-down", "To avoid this inconsistency, we are taking the entire process down.", {}),
    (
        "nccl-watchdog-stuck",
        "[rank1]:[E1111 17:10:53 ProcessGroupNCCL.cpp:1375] [PG ID 0 PG GUID 0(default_pg) Rank 1] ProcessGroupNCCL's "
        "watchdog got stuck for 480 seconds without making progress in monitoring enqueued collectives.",
        {"seconds": "480"},
    ),
    ("gil-not-acquired", "[PG 0 Rank 0] Could not acquire GIL within 300 ms on exit, possible GIL induced hang", {}),
    (
        "store-gone-line",
        '[rank3]:[W x] [PG 0 Rank 3] Failed to check the "should dump" flag on TCPStore, (maybe '
        "TCPStore server has shut down too early), with error: Broken pipe",
        {},
    ),
    ("cuda-out-of-memory", "step 3 failed: CUDA out of memory. Tried to allocate 2.00 GiB.", {"size": "2.00 GiB"}),
    (
        "loader-shared-memory",
        "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).",
        {},
    ),
    (
        "hccl-connect-timeout",
        "EI0006: [PID: 1292363] 2025-04-08-18:07:20.444.436 Getting socket times out. Reason: Remote Rank did not send "
        "the data in time.",
        {},
    ),
    (
        "hccl-inconsistent",
        "EI0005: [PID: 1] The arguments for collective communication are inconsistent between ranks",
        {},
    ),
    ("npu-out-of-memory", "EL0004: [PID: 1] 2025-01-01-00:00:00.000.000 Failed to allocate memory.", {}),
]
NCCL_EXAMPLES: list[tuple[str, str]] = [
    (
        "ib-retry-exceeded",
        "NET/IB : Got completion from peer 10.2.0.5<33092> with error 12, opcode 0, len 0, vendor err 129",
    ),
    (
        "ib-retry-exceeded",
        "NET/IB : Got completion from peer 30.0.0.4<1> with status=12 opcode=129 len=52 vendor err 129 (Recv)",
    ),
    ("ib-retry-exceeded", "NET/IB : Got completion with error 12, opcode 1, len 0, vendor err 129"),
    (
        "ib-retry-exceeded",
        "NET/IB: Got completion from peer 10.1.5.13<40554> with status=IBV_WC_RETRY_EXC_ERR(12) "
        "opcode=IBV_WC_RECV_RDMA_WITH_IMM(129) vendor_err=129 localGid ::ffff:1.1.2.2 hca mlx5_1",
    ),
    ("ib-flushed", "NET/IB : Got completion from peer 10.2.0.5<33092> with status=5 opcode=0 len=0 vendor err 249"),
    (
        "ib-memory",
        "NET/IB: Got completion from peer 10.9.1.63<51161> with status=4 opcode=32614 len=32614 vendor err 81",
    ),
    ("ib-completion", "NET/IB : Got completion from peer 10.2.0.5<33092> with status=13 opcode=0 len=0 vendor err 135"),
    ("ib-async-event", "NET/IB : mlx5_0:1 Got async event : port error"),
    ("ib-async-event", "NET/IB : mlx5_0:1 async fatal event: local catastrophic error"),
    ("no-route", "socketStartConnect: Connect to 10.0.0.2<40123> failed : No route to host"),
    ("connection-refused", "Call to connect returned Connection refused, retrying"),
    (
        "connection-refused",
        "socketPollConnect: connect to 10.0.0.2<40123> returned Connection refused, exceeded error "
        "retry count after 34 attempts",
    ),
    ("connection-timed-out", "socketPollConnect: connect to 10.0.0.2<40123> returned Connection timed out, exceeded"),
    ("peer-closed", "socketProgress: Connection closed by remote peer n2<40123>"),
    ("peer-closed", "socketProgressOpt: Call to recv from 10.0.0.2<40123> failed : Connection reset by peer"),
    ("no-interface", "Bootstrap : no socket interface found"),
    ("no-interface", "NET/Socket : no interface found"),
    ("network-plugin", "Error: network AWS Libfabric not found.".replace(" Libfabric", "")),
    ("shared-memory-full", "Error while creating shared memory segment /dev/shm/nccl-HZbZ2w (size 9637888)"),
    (
        "shared-memory-full",
        "Error: failed to extend /dev/shm/nccl-HZbZ2w to 9637888 bytes, error: No space left on device (28)",
    ),
    ("shared-memory-full", "Call to posix_fallocate failed : No space left on device"),
    ("duplicate-gpu", "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 3000"),
    ("cuda-out-of-memory", "Cuda failure 'out of memory'"),
    ("cuda-out-of-memory", "Cuda failure 2 'out of memory'"),
    ("nccl-cuda-failure", "Cuda failure 'an illegal memory access was encountered'"),
    ("nccl-version", "Mismatched NCCL version detected : rank 1 version 21805 rank 0 version 22005"),
    ("nccl-truncated", "Message truncated : received 1024 bytes instead of 256"),
    ("nccl-invalid-usage", "Reduce : invalid root 5 (root should be in the 0..2 range)"),
    ("nccl-invalid-usage", "Invalid rank requested : 4/2"),
    ("nccl-proxy", "[Service thread] Error encountered progressing operation=Connect, res=3, closing connection"),
    ("nccl-proxy", "[Proxy Service 3] Failed to execute operation Connect from rank 3, retcode 2"),
    ("nccl-socket-timeout", "misc/socket.cc:420 accept: Timeout"),
]
_NCCL_ERROR = "NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1275, "
_GLOO = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] "
EXCEPTION_EXAMPLES: list[tuple[str, str, str]] = [
    (
        "launcher-child-failed",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError",
        "\n====\ntrain.py FAILED",
    ),
    (
        "launcher-signalled",
        "torch.distributed.elastic.multiprocessing.api.SignalException",
        "Process 12 got signal: 15",
    ),
    (
        "spawn-child-failed",
        "torch.multiprocessing.spawn.ProcessExitedException",
        "process 1 terminated with signal SIGKILL",
    ),
    (
        "spawn-child-failed",
        "torch.multiprocessing.spawn.ProcessRaisedException",
        "\n\n-- Process 1 terminated with the error",
    ),
    ("msrun-failed", "RuntimeError", "Distributed job exited with exception. Please check logs in directory: ."),
    (
        "mindspore-nodes-timed-out",
        "RuntimeError",
        "The total number of timed out node is 2. Timed out node list is: [const vector]{0, 1}, "
        "worker 0 is the first one "
        "timed out, please check its log.",
    ),
    ("rendezvous-timeout", "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError", ""),
    (
        "rendezvous-lost",
        "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError",
        "The connection to the C10d",
    ),
    ("ray-worker-died", "ray.exceptions.ActorDiedError", "The actor died unexpectedly before finishing this task."),
    ("ray-out-of-memory", "ray.exceptions.OutOfMemoryError", "Task was killed due to the node running low on memory."),
    ("outside-service", "requests.exceptions.ConnectionError", "Max retries exceeded: Connection refused"),
    ("outside-service", "huggingface_hub.errors.HfHubHTTPError", "504 Server Error"),
    ("interrupted", "KeyboardInterrupt", ""),
    ("interrupted", "SystemExit", "1"),
    (
        "hccl-notify-timeout",
        "RuntimeError",
        "ERR02200\nEI0002: [PID: 9] The wait execution of the Notify register times out.",
    ),
    (
        "npu-operator-timeout",
        "RuntimeError",
        "NPU function error: error code is 507014\n[Error]: The aicore execution times out.",
    ),
    (
        "cuda-out-of-memory",
        "torch.OutOfMemoryError",
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total",
    ),
    ("cuda-out-of-memory", "torch.cuda.OutOfMemoryError", "CUDA out of memory. Tried to allocate 20.00 MiB"),
    ("cuda-out-of-memory", "RuntimeError", "CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 15.78 GiB total"),
    (
        "cuda-out-of-memory",
        "RuntimeError",
        "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported",
    ),
    (
        "device-out-of-memory",
        "RuntimeError",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    ),
    ("loader-worker-killed", "RuntimeError", "DataLoader worker (pid 9469) is killed by signal: Killed. "),
    (
        "loader-shared-memory",
        "RuntimeError",
        "DataLoader worker (pid 9469) is killed by signal: Bus error. It is possible",
    ),
    ("loader-worker-died", "RuntimeError", "DataLoader worker (pid 9469) is killed by signal: Segmentation fault. "),
    ("loader-worker-died", "RuntimeError", "DataLoader worker (pid(s) 12, 13) exited unexpectedly"),
    ("host-out-of-memory", "MemoryError", ""),
    ("host-out-of-memory", "numpy.core._exceptions._ArrayMemoryError", "Unable to allocate 7.45 GiB for an array"),
    (
        "host-out-of-memory",
        "RuntimeError",
        "[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate",
    ),
    ("disk-full", "OSError", "[Errno 28] No space left on device: '/tmp/x'"),
    ("too-many-files", "OSError", "[Errno 24] Too many open files"),
    (
        "cuda-device-assert",
        "torch.AcceleratorError",
        "CUDA error: device-side assert triggered\nCUDA kernel errors might",
    ),
    ("cuda-illegal-memory", "RuntimeError", "CUDA error: an illegal memory access was encountered"),
    ("cuda-illegal-memory", "RuntimeError", "CUDA error: misaligned address"),
    ("cuda-illegal-memory", "RuntimeError", "CUDA error: unspecified launch failure"),
    ("cuda-hardware", "RuntimeError", "CUDA error: uncorrectable ECC error encountered"),
    ("cuda-no-kernel", "RuntimeError", "CUDA error: no kernel image is available for execution on the device"),
    ("cuda-invalid-device", "RuntimeError", "CUDA error: invalid device ordinal"),
    ("cuda-error", "RuntimeError", "CUDA error: invalid configuration argument"),
    (
        "collective-timeout",
        "torch.distributed.DistBackendError",
        "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE, "
        "Timeout(ms)=1) ran for",
    ),
    ("gloo-timeout", "RuntimeError", _GLOO + "Timed out waiting 1800000ms for recv operation to complete"),
    ("gloo-pair-closed", "RuntimeError", "Application timeout caused pair closure"),
    (
        "monitored-barrier-peer",
        "RuntimeError",
        "Rank 1 successfully reached monitoredBarrier, but received errors while waiting for "
        "send/recv from rank 0. Please "
        "check rank 0 logs for faulty rank.",
    ),
    ("monitored-barrier", "RuntimeError", "[Rank 0]: Ranks 1, 2 failed to pass monitoredBarrier in 3000 ms"),
    (
        "store-clients",
        "torch.distributed.DistStoreError",
        "Timed out after 61 seconds waiting for clients. 1/2 clients joined.",
    ),
    (
        "store-barrier",
        "torch.distributed.DistStoreError",
        "Timed out initializing process group in store based barrier on rank: 0, for key: store_based_barrier_key:1 "
        "(world_size=2, num_workers_joined=1, timeout=0:30:00)",
    ),
    ("store-wait", "torch.distributed.DistStoreError", "wait timeout after 5000ms, keys: /default_pg/0//cpu//0/1"),
    ("store-wait", "torch.distributed.DistStoreError", "Socket Timeout"),
    (
        "store-wait",
        "torch.distributed.DistBackendError",
        "[1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value "
        "store by key '0', but "
        "store->get('0') got error: Timeout waiting for key: default_pg/0//cuda//0 after 1800000 ms",
    ),
    (
        "store-unreachable",
        "torch.distributed.DistNetworkError",
        "The client socket has timed out after 3000ms while trying to connect to (127.0.0.1, 29779).",
    ),
    (
        "address-in-use",
        "torch.distributed.DistNetworkError",
        "The server socket has failed to listen on any local network address. port: 29778, useIpv6: false, code: -98, "
        "name: EADDRINUSE, message: address already in use",
    ),
    ("gloo-peer-closed", "RuntimeError", _GLOO + "Connection closed by peer [127.0.0.1]:18123. This is typically"),
    ("gloo-peer-closed", "RuntimeError", _GLOO + "Read error [127.0.0.1]:29058: Connection reset by peer. This is"),
    (
        "gloo-connect",
        "RuntimeError",
        "Gloo connectFullMesh failed with [/x/pair.cc:152] timed out connecting: SO_ERROR: Connection",
    ),
    (
        "mismatched-collectives",
        "RuntimeError",
        "Detected mismatch between collectives on ranks. Rank 0 is running collective: CollectiveFingerPrint("
        "SequenceNumber=1, OpType=BROADCAST), but Rank 1 is running collective: "
        "CollectiveFingerPrint(OpType=ALLREDUCE)",
    ),
    (
        "unused-parameters",
        "RuntimeError",
        "Expected to have finished reduction in the prior iteration before starting a",
    ),
    (
        "parameters-differ",
        "RuntimeError",
        "DDP expects same model across all ranks, but Rank 0 has 4 params, while rank 1 has",
    ),
    ("dynamo-error", "torch._dynamo.exc.BackendCompilerFailed", "backend='inductor' raised:"),
    ("dynamo-error", "torch._inductor.exc.InductorError", "LoweringException"),
    (
        "store-gone",
        "torch.distributed.DistNetworkError",
        "Failed to recv, got 0 bytes. Connection was likely closed. Did the",
    ),
    (
        "store-gone",
        "torch.distributed.DistBackendError",
        "[1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value "
        "store by key '0', but "
        "store->get('0') got error: Connection reset by peer",
    ),
    (
        "nccl-invalid-usage",
        "torch.distributed.DistBackendError",
        _NCCL_ERROR + "invalid usage (run with NCCL_DEBUG=WARN)",
    ),
    (
        "nccl-remote-error",
        "torch.distributed.DistBackendError",
        _NCCL_ERROR
        + "remote process exited or there was a network error, NCCL version 2.18.5\nncclRemoteError: A call",
    ),
    (
        "nccl-system-error",
        "torch.distributed.DistBackendError",
        _NCCL_ERROR + "unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.18.5",
    ),
    ("nccl-aborted", "torch.distributed.DistBackendError", "NCCL communicator was aborted on rank 1."),
    ("nccl-error", "torch.distributed.DistBackendError", _NCCL_ERROR + "internal error - please report this issue"),
    ("mpi-error", "mpi4py.MPI.Exception", "MPI_ERR_TRUNCATE: message truncated"),
    ("connection-lost", "BrokenPipeError", "[Errno 32] Broken pipe"),
    ("connection-lost", "ConnectionResetError", "[Errno 104] Connection reset by peer"),
    ("connection-refused", "ConnectionRefusedError", "[Errno 111] Connection refused"),
    (
        "hccl-connect-timeout",
        "RuntimeError",
        "HcclAllreduce, error code is 6\nEI0006: [PID: 1] Getting socket times out.",
    ),
]
FRAME_EXAMPLES = [
    (
        "launcher-command-failed",
        "subprocess.CalledProcessError",
        "Command '['/opt/venv/bin/python', 'x.py']' returned non-zero exit status 1.",
        "/opt/venv/lib/python3.11/site-packages/accelerate/commands/launch.py",
    ),
    ("worker-pipe-closed", "EOFError", "", "/usr/lib/python3.11/multiprocessing/connection.py"),
]
HEALTHY = """\
[2026-01-01 12:00:00] step 100 loss 2.345 lr 1e-4 grad_norm 0.9 0 errors
iteration 100/ 5000 | consumed samples: 1600 | elapsed time per iteration (ms): 812.3 | error rate 0.1
Epoch 0:  45%|####5     | 723/1602 [2:12:45<2:59:53, 12.28s/it, loss=2.6]
{'loss': 3.5534, 'grad_norm': 1.41, 'learning_rate': 2.04e-06, 'epoch': 0.01}
n1:5776:5898 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.2.0.4<0>
n1:5776:5902 [0] NCCL INFO transport/net.cc:1134 -> 6
n1:5776:5902 [0] NCCL INFO Connected all rings
/opt/venv/lib/python3.11/site-packages/torch/x.py:3: UserWarning: the default will change
Setting OMP_NUM_THREADS environment variable for each process to be 1 in default, to avoid your system being overloaded
If you run out of memory, lower the batch size. CUDA kernel errors might be asynchronously reported at some other API
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
This is most likely caused by incorrect usages of collectives, or a GIL deadlock, or network errors.
[WARNING] DISTRIBUTED(8805,7f,python) [cluster_context.cc:316] BuildCluster] Topology build timed out., retry(1/1200).
[2026-11-19 20:57:43,619] [INFO] [launch.py:285:main] Process 8569 exits successfully.
[rank0]:[W1119 21:00:00 ProcessGroupNCCL.cpp:1496] Warning: WARNING: destroy_process_group() was not called
saved checkpoint to /ckpt/step_100 (12.3 GB), no space was freed; memory limit 80 GB
Killed 3 stale workers before start
retry: connection to the dataset server timed out, trying again
test_abort PASSED, 0 FAILED tests
[INFO] shared memory for the tokenizer cache: 3 GB
Using bfloat16 Automatic Mixed Precision; skipped 3 corrupted samples
Status: Aborted
validation done: Terminated criteria not reached; Aborted runs: 0"""


def _line(text: str, rank: int = -1) -> LogLine:
    return LogLine(text, rank)


@pytest.mark.parametrize(("key", "text", "values"), LINE_EXAMPLES)
def test_line(key: str, text: str, values: dict[str, str]) -> None:
    event = read_known(_line(text))

    assert isinstance(event, KnownEvent), text
    assert event.key == key
    assert values.items() <= event.values.items()
    assert event.role == row_of(key).role
    assert any(trigger in text.encode() for trigger in ALL_TRIGGERS), f"the scanner would not look at: {text}"


@pytest.mark.parametrize(("key", "text"), NCCL_EXAMPLES)
def test_nccl_line(key: str, text: str) -> None:
    event = read_known(_line(NCCL + text))

    assert isinstance(event, KnownEvent), text
    assert (event.key, event.values["host"], event.values["device"]) == (key, "n1", "3")


@pytest.mark.parametrize(("key", "text"), NCCL_EXAMPLES)
def test_what_nccl_said_last_explains_an_exception(key: str, text: str) -> None:
    message = _NCCL_ERROR + f"unhandled system error, NCCL version 2.18.5\nncclSystemError: x\nLast error:\n{text}"

    row = classify_exception(Raised(type="torch.distributed.DistBackendError", message=message))

    assert row is not None
    assert row.key == key


@pytest.mark.parametrize(("key", "type_", "message"), EXCEPTION_EXAMPLES)
def test_exception(key: str, type_: str, message: str) -> None:
    row = classify_exception(Raised(type=type_, message=message))

    assert row is not None, (type_, message)
    assert row.key == key


@pytest.mark.parametrize(("key", "type_", "message", "file"), FRAME_EXAMPLES)
def test_exception_whose_meaning_depends_on_where_it_was_raised(key: str, type_: str, message: str, file: str) -> None:
    frames = (Frame("main", "train.py", 3),)
    raised = Raised(type=type_, message=message, frames=(*frames, Frame("f", file, 9)))

    found = classify_exception(raised)

    assert found is not None
    assert found.key == key
    assert classify_exception(Raised(type=type_, message=message, frames=frames)) is None


@pytest.mark.parametrize("type_", ["ValueError", "AssertionError", "KeyError", "train.MyError", "RuntimeError"])
def test_exception_of_the_program_has_no_row(type_: str) -> None:
    assert classify_exception(Raised(type=type_, message="bad batch 17")) is None


def test_each_row_has_an_example() -> None:
    seen = defaultdict(set)
    for key, text, _ in LINE_EXAMPLES:
        seen["line"].add(key)
        assert text
    seen["nccl"] = {key for key, _ in NCCL_EXAMPLES}
    seen["exception"] = {key for key, *_ in EXCEPTION_EXAMPLES} | {key for key, *_ in FRAME_EXAMPLES}

    assert {row.key for row in LINE_TABLE} <= seen["line"]
    assert {row.key for row in NCCL_ROWS} == seen["nccl"]
    assert {row.key for row in EXCEPTION_TABLE} <= seen["exception"] | seen["line"]


def test_rows_are_well_formed() -> None:
    by_key = defaultdict(list)
    for row in ROWS:
        by_key[row.key].append(row)
        assert re.fullmatch(r"[a-z0-9-]+", row.key)
        assert row.meaning.endswith(".") and row.advice.endswith("."), row.key
    for rows in by_key.values():
        assert len({(row.kind, row.role) for row in rows}) == 1, rows[0].key
    assert all(row.kind for row in EXCEPTION_TABLE if row.where == IN_BOTH)


def test_roles_that_the_first_cause_rests_on() -> None:
    assert {row_of(key).role for key in ("gloo-peer-closed", "nccl-remote-error", "connection-lost")} == {CASCADE}
    assert {row_of(key).role for key in ("launcher-child-failed", "spawn-child-failed", "interrupted")} == {TEARDOWN}
    assert {row_of(key).role for key in ("unused-parameters", "cuda-out-of-memory", "monitored-barrier")} == {
        INITIATING
    }
    assert row_of("cuda-out-of-memory").kind == OUT_OF_MEMORY
    assert row_of("store-clients").kind == TIMEOUT


@pytest.mark.parametrize("text", HEALTHY.splitlines())
def test_healthy_line_is_read_by_no_table(text: str) -> None:
    launcher = LauncherReader()

    assert read_known(_line(text)) is None
    assert read_timeout(_line(text)) is None
    assert [*launcher.feed(_line(text)), *launcher.finish()] == []
    assert not launcher.open


def test_triggers_are_few_and_rare() -> None:
    assert len(set(ALL_TRIGGERS)) == len(ALL_TRIGGERS)
    # A line with a trigger costs a reading; most lines of healthy training have none.
    hit = [text for text in HEALTHY.splitlines() if any(trigger in text.encode() for trigger in ALL_TRIGGERS)]
    assert len(hit) <= 10, hit


def test_dumps_are_named() -> None:
    event = read_known(
        _line("[rank1]:[I x] [PG ID 0 PG GUID 0 Rank 1] ProcessGroupNCCL dumping nccl trace to /tmp/fr_1")
    )

    assert isinstance(event, DumpEvent)
    assert (event.path, event.kind, event.rank) == ("/tmp/fr_1", "recorder", 1)


def test_line_of_a_rank_keeps_it() -> None:
    event = read_known(_line("free(): invalid pointer", rank=7))

    assert event is not None
    assert event.rank == 7


@given(st.text())
def test_any_text_is_read_without_an_error(text: str) -> None:
    read_known(_line(text))
    read_timeout(_line(text))
    classify_exception(Raised(type=text[:10], message=text[10:]))


HOSTILE = ["x", "[", " ", "1", "connect returned ", "Work", "NCCL WARN ", "Rank 1, ", "(", "=", ": line 1: ", "FAILED "]


@pytest.mark.parametrize("part", HOSTILE)
@pytest.mark.parametrize(
    "start", ["", "NCCL WARN connect ", "collective operation timeout: WorkNCCL(", " segfault at "]
)
def test_long_line_is_read_in_bounded_time(start: str, part: str) -> None:
    """WHEN a line of a megabyte is read, THEN it ends within the time limit of tests."""
    text = start + part * (1_000_000 // len(part))
    launcher = LauncherReader()

    read_known(_line(text))
    read_timeout(_line(text))
    list(launcher.feed(_line(text)))
    classify_exception(Raised(type="RuntimeError", message=text))


def test_error_at_the_end_of_a_long_progress_bar() -> None:
    event = read_known(_line("\r 45%|####5     | 723/1602" * 1000 + "CUDA out of memory. Tried to allocate 2.00 GiB."))

    assert isinstance(event, KnownEvent)
    assert event.key == "cuda-out-of-memory"


@pytest.mark.parametrize(
    ("code", "signal", "words"),
    [
        (137, 0, "killed, likely out of memory"),
        (-9, 0, "killed, likely out of memory"),
        (-1, 9, "killed, likely out of memory"),
        (139, 0, "segmentation fault"),
        (134, 0, "aborted"),
        (135, 0, "bus error: likely /dev/shm"),
        (143, 0, "terminated by the launcher"),
        (130, 0, "interrupted"),
        (-13, 0, "broken pipe"),
        (127, 0, "not found"),
        (126, 0, "not executable"),
        (2, 0, "usage error"),
        (1, 0, "uncaught exception"),
        (120, 0, "flush"),
        (255, 0, "exit code -1"),
        (42, 0, "the program chose"),
        (-1, 0, "not told"),
    ],
)
def test_exit_meaning(code: int, signal: int, words: str) -> None:
    assert words in meaning(code, signal).words


def test_exit_meaning_of_a_core() -> None:
    assert meaning(-1, 11, core=True).words.endswith("(core dumped)")
    assert meaning(-9, 0).kind != OUT_OF_MEMORY, "a kill alone proves no lack of memory"


@given(st.integers(-300, 300), st.integers(0, 64))
def test_every_exit_has_words(code: int, signal: int) -> None:
    told = meaning(code, signal)

    assert told.words
    assert told.area in ("workload", "infrastructure", "either")
    assert signal_of(code, signal) >= 0
