"""breakranks: find the rank that broke ranks, say why, and let a person look inside."""

__version__ = "0.1.0"
