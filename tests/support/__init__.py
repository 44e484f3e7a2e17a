"""Shared parts of the tests: processes that end with their test, waiting, stalls."""
