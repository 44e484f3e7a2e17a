"""Evidence from outside a process: stacks, state, files, sockets, locks; flight recorder dumps."""
