"""From a snapshot to a verdict. Nothing here touches a process, so every rule can be tested from a file."""
