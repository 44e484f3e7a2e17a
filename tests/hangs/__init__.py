"""Real broken jobs: tiny programs under their real launchers, and what `breakranks why` must say of each."""
