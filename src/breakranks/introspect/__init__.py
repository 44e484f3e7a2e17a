"""What to ask a process, found in its sources, and how to read its answer."""
