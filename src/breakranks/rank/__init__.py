"""The code that runs in a rank that is debugged: the stop, the agent that serves consoles, and what they need.

Imported by the job itself (``breakranks.breakpoint()``), so: the standard library only, torch only if the process has
imported it, and no exception of breakranks may reach the job. See docs/breakpoints.md.
"""

AGENT_THREAD = "breakranks rank"  # its name in the kernel, of at most 15 characters
