"""Reading logs: prefixes, tracebacks that are interleaved, known lines, and the first cause. Reads text only."""
