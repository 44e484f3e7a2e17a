"""More of the table of the zoo: hangs that only torch's flight recorder explains, or explains better."""

from __future__ import annotations

from .case import Case, named_pipe

COLLECTIVES = (
    # --- all ranks are in collectives, and stacks show little or nothing of the cause ---
    # Ranks 1 and 2 wait for each other, 0 and 3 for one of them.
    Case(
        name="order_two_groups",
        ranks=4,
        stands={"0-3": "reduce_gradients"},
        kinds=("collective-order-deadlock",),
        culprits=("1-2",),
        victims=("0,3",),
        function=("reduce_gradients",),
        mentions=("data", "expert"),
    ),
    Case(
        name="op_differs",
        ranks=4,
        stands={"0-3": "synchronise"},
        kinds=("collective-mismatch",),
        culprits=("2", "0-3"),
        mentions=("all_gather", "all_reduce"),
    ),
    # Rank 2 completed its smaller all_reduce, and is one ahead of the others: it is the culprit, not a victim.
    Case(
        name="size_differs",
        ranks=4,
        stands={"0-3": "train"},
        kinds=("collective-mismatch",),
        culprits=("2", "0-3"),
        mentions=("all_reduce", "2097152", "3145728"),
    ),
    Case(
        name="size_differs_reduce",
        ranks=4,
        stands={"0-3": "merge_histograms"},
        kinds=("collective-mismatch",),
        culprits=("2", "0-3"),
        mentions=("reduce", "2097152", "3145728"),
    ),
    # One call of the group is a broadcast on rank 2 and a barrier on the others. All are blocked in a barrier.
    Case(
        name="extra_broadcast",
        ranks=3,
        stands={"0-2": "end_step"},
        kinds=("collective-mismatch",),
        culprits=("2", "0-2"),
        mentions=("broadcast", "barrier"),
        live=True,
    ),
    Case(
        name="extra_barrier",
        ranks=4,
        stands={"0,2-3": "barrier", "1": "count_all"},
        kinds=("collective-mismatch",),
        culprits=("1", "0-3"),
        mentions=("barrier", "all_reduce"),
    ),
    # --- one rank is elsewhere ---
    Case(
        name="same_line_hang",
        ranks=4,
        stands={"0,2-3": "all_reduce", "1": "wait_for_evaluation"},
        kinds=("missing-from-collective", "thread-deadlock"),
        culprits=("1",),
        victims=("0,2-3",),
        function=("wait_for_evaluation",),
    ),
    Case(
        name="async_pipelined",
        ranks=4,
        stands={"0-1,3": "finish", "2": "collect_metrics"},
        kinds=("missing-from-collective", "thread-deadlock"),
        culprits=("2",),
        victims=("0-1,3",),
        function=("collect_metrics",),
    ),
    # The recorders contain different parts of the run. Calls that are missing in some are not a finding.
    Case(
        name="ring_wrapped",
        ranks=4,
        stands={"0-2": "all_reduce", "3": "wait_for_labels"},
        kinds=("missing-from-collective",),
        culprits=("3",),
        victims=("0-2",),
        function=("wait_for_labels",),
    ),
    # A broadcast has completed on some ranks while others are in it. Those that continued are victims, not a mismatch.
    Case(
        name="broadcast_one_absent",
        ranks=4,
        stands={"0,2": "start_epoch", "1": "share_settings", "3": "read_overrides"},
        kinds=("missing-from-collective",),
        culprits=("3",),
        victims=("0-2",),
        function=("read_overrides",),
        mentions=("rank 3", "broadcast"),
    ),
    # --- one rank is elsewhere, and the wait goes through two groups ---
    Case(
        name="mesh_slow_rank",
        ranks=8,
        prepare=named_pipe("shard-0004"),
        stands={"5": "load_batch", "4,6-7": "forward", "0-3": "reduce_gradients"},
        kinds=("missing-from-collective", "blocked-io", "data-loading"),
        culprits=("5",),
        victims=("0-4,6-7",),
        function=("load_batch",),
        mentions=("rank 5", "mesh_tp"),
    ),
    Case(
        name="mesh_slow_rank_dp",
        ranks=8,
        stands={"6": "clip_gradients", "2": "reduce_gradients", "0-1,3-5,7": "forward"},
        kinds=("missing-from-collective",),
        culprits=("6",),
        victims=("0-5,7",),
        function=("clip_gradients",),
        # Rank 6 has entered neither call, of mesh_dp or mesh_tp: the one in which a rank waited first is named.
        mentions=("rank 6", "has not entered all_reduce", "of mesh_"),
    ),
    Case(
        name="p2p_chain_group",
        stands={"0": "receive_activations", "1": "forward", "2": "load_adapter"},
        kinds=("missing-from-collective",),
        culprits=("2",),
        victims=("0-1",),
        function=("load_adapter",),
        mentions=("tensor_parallel",),
    ),
    Case(
        name="p2p_cycle_group",
        stands={"0": "receive_activations", "1": "forward", "2": "receive_mask"},
        kinds=("p2p-deadlock", "collective-order-deadlock"),
        culprits=("0-2",),
        mentions=("recv", "all_reduce"),
    ),
    # --- libraries ---
    Case(
        name="fsdp_blocks_validate",
        ranks=4,
        stands={"0": "validate", "1-3": "report"},
        kinds=("collective-mismatch",),
        culprits=("0", "0-3"),
        mentions=("all_gather", "all_reduce"),
    ),
    Case(
        name="fsdp1_lone_forward",
        ranks=4,
        stands={"0": "log_example", "1-3": "barrier"},
        kinds=("collective-mismatch",),
        culprits=("0", "0-3"),
        mentions=("all_gather", "barrier"),
    ),
    Case(
        name="fsdp_eval_rank0",
        ranks=4,
        stands={"0": "full_tensor", "1-3": "barrier"},
        kinds=("collective-mismatch",),
        culprits=("0", "0-3"),
        mentions=("all_gather", "barrier"),
    ),
    Case(
        name="ddp_uneven",
        ranks=4,
        stands={"0-2": "backward", "3": "validate"},
        kinds=("collective-mismatch",),
        culprits=("3", "0-3"),
        mentions=("all_gather", "all_reduce"),
    ),
    Case(
        name="moe_all_to_all",
        ranks=4,
        stands={"0-1,3": "dispatch", "2": "balance_loss"},
        kinds=("collective-mismatch",),
        culprits=("2", "0-3"),
        mentions=("all_to_all", "all_reduce"),
    ),
    # --- visible only in the arguments of the calls, not in the records ---
    Case(
        name="root_differs",
        ranks=4,
        stands={"0-3": "main"},
        kinds=("collective-mismatch", "collective-stalled"),
        mentions=("gather",),
    ),
    # Rank 1 skipped a call, and waits for ranks that wait for it in that call.
    Case(
        name="checkpoint_thread_died",
        ranks=3,
        stands={"0,2": "join", "1": "all_reduce"},
        kinds=("collective-order-deadlock",),
        culprits=("1",),
        victims=("0,2",),
        mentions=("barrier #1 of checkpoint", "all_reduce #2"),
        live=True,
    ),
    # --- a rank is gone ---
    Case(
        name="dead_before",
        stands={"0-1": "make_evaluation_group"},
        gone="2",
        kinds=("rank-exited",),
        culprits=("2",),
        victims=("0-1",),
    ),
    # --- nothing is wrong ---
    Case(name="healthy_mesh", ranks=4, busy="0-3"),
    Case(name="healthy_async", ranks=2, busy="0-1"),
    Case(name="healthy_p2p", busy="0-2"),
    Case(name="healthy_checkpoint_thread", ranks=2, busy="0-1"),
    Case(name="healthy_overlap", ranks=2, busy="0-1"),
)
