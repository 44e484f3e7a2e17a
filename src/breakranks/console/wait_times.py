"""How long the console waits for ranks and agents."""

from __future__ import annotations

POLL_SECONDS = 0.05  # between two checks of a condition

# Agents, which answer also while their rank is busy.
REPLY_SECONDS = 2.0  # to a request
WHERE_SECONDS = 1.0  # to where a rank is, while others wait for it
HELLO_SECONDS = 5.0  # to the hello of a console
CONNECT_SECONDS = 2.0  # of a job that was attached to: until all agents have greeted
TIMEOUTS_SECONDS = 5.0  # to extend the timeouts of all groups
PROBE_SECONDS = 5.0  # to set a logpoint
THREAD_SECONDS = 5.0  # to choose a thread
DAP_SECONDS = 5.0  # to the state of debugpy

# Stops. Ranks reach one a moment apart.
SCRIPT_STOP_SECONDS = 60.0  # for the first stop, in a script
USER_STOP_SECONDS = 1.0  # for the first stop, before the user is told that there is none
ALL_STOPS_SECONDS = 0.15  # for all ranks, at the first stop,
ANOTHER_STOP_SECONDS = 0.1  # for another rank after that,
SETTLE_SECONDS = 1.0  # and altogether
FOLD_SECONDS = 0.5  # for another stop, before those so far are shown together,
MOST_FOLD_SECONDS = 2.0  # and altogether
GATHER_SECONDS = 0.5  # in a script, for the other ranks that `all` is for
ARRIVAL_SECONDS = 3.0  # in a script, for ranks that should arrive soon
HELD_FOR_SECONDS = 10.0  # in a script, for the rank that others hold for
NEXT_STOP_SECONDS = 0.2  # after a `c`, before the user is told that ranks run
HALT_SECONDS = 5.0  # for a rank to stop after an interrupt
ATTACH_HALT_SECONDS = 4.0  # at an attach, for a rank that computes in C to return to Python,
HALT_CHECK_SECONDS = 0.15  # between two checks of that; a rank that forks may wait so long for its child

# Resuming.
GO_SECONDS = 10.0  # for a rank to resume, once nothing keeps it
FOLLOW_SECONDS = 1.0  # for held ranks to resume after the rank that they hold for,
FOLLOW_TRACED_SECONDS = 0.1  # and where that one may stop again

# Answers of ranks.
ANSWER_CHECK_SECONDS = 0.2  # between two checks for answers
FIRST_WHERE_SECONDS = 0.7  # without an answer, before the console finds out where a rank is,
NEXT_WHERE_SECONDS = 2.0  # and between two more times
HIT_SECONDS = 0.5  # within which ranks report the same hit of a logpoint

FOREVER_SECONDS = 1e9
