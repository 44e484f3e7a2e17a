"""Runs the agent on a host without breakranks: the command, stage one, and what is sent."""
