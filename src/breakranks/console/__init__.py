"""The console: one prompt over many ranks, and their answers folded."""
