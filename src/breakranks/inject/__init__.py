"""Running a small piece of our own Python in a live process that knows nothing of us. See docs/inside.md."""
