"""From a snapshot to a verdict. Never touches a process: every rule can be tried from a file."""

from breakranks.explain.judge import explain
from breakranks.explain.model import Class, Diagnosis, Finding, Where

__all__ = ["Class", "Diagnosis", "Finding", "Where", "explain"]
