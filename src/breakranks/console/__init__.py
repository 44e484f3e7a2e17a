"""The console: one prompt over many ranks, whose answers are folded."""
