"""Run a small piece of Python code in a live process that was not prepared for it. See docs/inject.md."""
