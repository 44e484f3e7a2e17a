"""What runs in a rank that somebody debugs: the stop, the agent that a console talks to, and what they need.

Imported by the job itself (``breakranks.breakpoint()``), so: the standard library only, torch only where the process
has imported it, and nothing here may raise into the job. See docs/breakpoints.md.
"""

AGENT_THREAD = "breakranks rank"  # what the kernel calls it, in its 15 characters
