"""One job on this machine: sample it, attach to it, evaluate in it, end it."""
