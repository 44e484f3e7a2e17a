"""One module per command: parse, call, show."""
