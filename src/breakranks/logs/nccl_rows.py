"""What NCCL says: its lines "NCCL WARN ..." and the last error that exceptions quote.

The texts are those of the sources of NCCL 2.10 to 2.29 and of issues on public trackers; a line begins with
``host:pid:thread [device] file.cc:line NCCL WARN``, with a time stamp in newer versions.
"""

from __future__ import annotations

from breakranks.logs.known_row import (
    EITHER,
    EXCEPTION,
    IN_NCCL,
    INFRASTRUCTURE,
    NO,
    OUT_OF_MEMORY,
    PERHAPS,
    TIMEOUT,
    WORKLOAD,
    KnownRow,
    known_row,
)
from breakranks.logs.log_events import CASCADE, INITIATING, NOTE

_NETWORK = (INITIATING, INFRASTRUCTURE, PERHAPS, EXCEPTION)
_SETUP = (INITIATING, INFRASTRUCTURE, NO, EXCEPTION)
_PEER_GONE = (CASCADE, EITHER, PERHAPS, EXCEPTION)

_COMPLETION = r"NET/IB(?:/GIN)? ?: ?Got completion (?:from peer (?P<peer>\S+) )?with (?:error |status=)(?:\w+\()?"
# 2.10 to 2.13 "Call to connect returned X"; later "connect to PEER returned X", "Connect to PEER failed : X".
_CONNECT = r"(?i:connect\w{0,20}\b.{0,300}?(?:returned|failed ?:)) .{0,100}?"


def _row(key: str, pattern: str, labels: tuple[str, str, str, str], meaning: str, advice: str) -> KnownRow:
    return known_row(key, pattern, labels, meaning, advice, where=IN_NCCL)


NCCL_ROWS: tuple[KnownRow, ...] = (
    _row(
        "ib-retry-exceeded",
        _COMPLETION + r"12\b",
        _NETWORK,
        "The InfiniBand or RoCE adapter sent to the peer again and again and got no answer (status 12): the link, the "
        "switch or the peer is down, or the RDMA network does not connect these hosts.",
        "Check the link of both hosts (ibstat, ibv_devinfo, dmesg). If only RDMA fails, NCCL_IB_DISABLE=1 shows it; on "
        "RoCE set NCCL_IB_GID_INDEX; NCCL_IB_TIMEOUT=22 helps on a congested network.",
    ),
    _row(
        "ib-flushed",
        _COMPLETION + r"5\b",
        _PEER_GONE,
        "The RDMA connection was already in error and its requests were flushed (status 5).",
        "Look for an earlier error on this rank or on the peer.",
    ),
    _row(
        "ib-memory",
        _COMPLETION + r"(?:4|10)\b",
        _SETUP,
        "The InfiniBand adapter may not access this memory (status 4 or 10): GPUDirect RDMA does not fit the driver, "
        "or a limit on locked memory.",
        "Check ulimit -l, the nvidia-peermem module and IOMMU/ACS; NCCL_NET_GDR_LEVEL=LOC switches GPUDirect RDMA off.",
    ),
    _row(
        "ib-completion",
        _COMPLETION + r"(?P<status>\d+)",
        _NETWORK,
        "The InfiniBand or RoCE adapter reported that a transfer failed.",
        "Check adapters and links of both hosts (ibstat, dmesg).",
    ),
    _row(
        "ib-async-event",
        r"NET/IB ?: ?\S+ (?:Got async event|async fatal event)\b.*?:? (?P<event>[\w ]+)",
        _NETWORK,
        "The InfiniBand adapter reported an event such as a port that went down.",
        "Check the adapter and its cable on this host (ibstat, dmesg).",
    ),
    _row(
        "no-route",
        _CONNECT + r"(?:No route to host|Network is unreachable)",
        _SETUP,
        "No route leads to the peer: NCCL chose a network interface which does not connect these hosts.",
        "Set NCCL_SOCKET_IFNAME to the interface of the cluster's network, and test each pair of hosts with nc.",
    ),
    _row(
        "connection-refused",
        _CONNECT + r"Connection refused",
        (CASCADE, EITHER, PERHAPS, EXCEPTION),
        "The peer refused the connection: its process ended already, or it listens on another interface.",
        "Look at the peer first. If it lives, set NCCL_SOCKET_IFNAME on all hosts, and test the pair with nc.",
    ),
    _row(
        "connection-timed-out",
        _CONNECT + r"Connection timed out",
        (INITIATING, INFRASTRUCTURE, PERHAPS, TIMEOUT),
        "Nothing answered at the address of the peer: a firewall, a wrong interface, or a host that is down.",
        "Set NCCL_SOCKET_IFNAME, open all ports between the hosts, and test each pair with nc.",
    ),
    _row(
        "peer-closed",
        r"Connection closed by (?:remote )?peer|Call to (?:recv|send)\b.*(?:Connection reset by peer|Broken pipe)"
        r"|socketProgress\w*: .*(?:Connection reset by peer|Broken pipe)",
        _PEER_GONE,
        "A peer closed its connection: its process ended before.",
        "Look for the first failure on another rank.",
    ),
    _row(
        "no-interface",
        r"no socket interface found|NET/Socket ?: ?(?:no interface found|unable to find interface|No usable)"
        r"|No interface found in the same subnet|NET/IB ?: ?No IP interface found",
        _SETUP,
        "No network interface matches what NCCL was told to use.",
        "Check NCCL_SOCKET_IFNAME against `ip address` on this host.",
    ),
    _row(
        "network-plugin",
        r"Error: network (?P<name>\S+) not found|Failed to initialize (?:any )?NET plugin",
        _SETUP,
        "NCCL_NET names a network (a plugin) that cannot be loaded on this host.",
        "Unset NCCL_NET or NCCL_NET_PLUGIN, or install the plugin and put it on LD_LIBRARY_PATH.",
    ),
    _row(
        "shared-memory-full",
        r"(?:Error while (?:creating|attaching to) shared memory segment|failed to extend|Could not map) "
        r"?(?P<path>/dev/shm/\S+)|Call to posix_fallocate failed ?: ?No space left",
        _SETUP,
        "/dev/shm is too small for NCCL's buffers: containers have 64 MB by default.",
        "Start the container with --shm-size=8g or --ipc=host; remove stale /dev/shm/nccl-* files.",
    ),
    _row(
        "duplicate-gpu",
        r"Duplicate GPU detected ?: rank (?P<ranks>\d+ and rank \d+) both on|Multiple Ranks are using the same GPU",
        (INITIATING, WORKLOAD, NO, EXCEPTION),
        "Two ranks use the same GPU.",
        "Call torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) before init_process_group; check "
        "CUDA_VISIBLE_DEVICES and the number of processes per host.",
    ),
    _row(
        "cuda-out-of-memory",
        r"Cuda failure (?:\d+ )?'out of memory'|Failed to CUDA \w+ \d+ bytes",
        (INITIATING, WORKLOAD, NO, OUT_OF_MEMORY),
        "The GPU has no memory left.",
        "Use a smaller batch or activation checkpointing; see which process holds the memory with nvidia-smi.",
    ),
    _row(
        "nccl-cuda-failure",
        r"Cuda failure (?:\d+ )?'(?P<error>[^']+)'",
        (INITIATING, EITHER, PERHAPS, EXCEPTION),
        "A CUDA call within NCCL failed. An earlier asynchronous error of a kernel shows here too.",
        "Run again with `breakranks run --sync-cuda -- …` to see the call that fails; check dmesg for Xid lines.",
    ),
    _row(
        "nccl-version",
        r"[Mm]ismatched NCCL version|NCCL version mismatch|NCCL library is too old|not backwards compatible",
        (INITIATING, INFRASTRUCTURE, NO, EXCEPTION),
        "The hosts run different versions of NCCL.",
        "Use the same container or environment on all hosts.",
    ),
    _row(
        "nccl-truncated",
        r"[Mm]essage truncated",
        (INITIATING, WORKLOAD, NO, EXCEPTION),
        "A message was larger than its receiver expected: ranks call collectives with different sizes, or another "
        "program connected to the port.",
        "Run again with TORCH_DISTRIBUTED_DEBUG=DETAIL to have shapes compared.",
    ),
    _row(
        "nccl-invalid-usage",
        r"Invalid (?:rank|device|config|argument)\b|: invalid (?:root|type|reduction)|argument is NULL"
        r"|not a valid pointer|mismatchs? with NCCL device",
        (INITIATING, WORKLOAD, NO, EXCEPTION),
        "NCCL was called with wrong arguments.",
        "Read the line of NCCL; compare rank numbers and world size with the launcher's.",
    ),
    _row(
        "nccl-proxy",
        r"\[(?:Proxy|Service)[\w ]*\]",
        (NOTE, EITHER, PERHAPS, EXCEPTION),
        "NCCL's helper thread reports a failure that another line explains.",
        "Look at the lines before it.",
    ),
    _row(
        "nccl-socket-timeout",
        r"misc/(?:socket|ipcsocket)\.cc.*[Tt]ime(?:d )?out",
        (INITIATING, INFRASTRUCTURE, PERHAPS, TIMEOUT),
        "A connection of NCCL's set-up did not come within its time.",
        "Find the rank that never came; test its host from the others with nc.",
    ),
)
