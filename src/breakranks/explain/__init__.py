"""From a snapshot to a verdict. Never touches a process: every rule can be tried from a file."""
