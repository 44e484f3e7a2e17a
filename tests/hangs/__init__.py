"""Real broken jobs: tiny programs under their real launchers, and the verdict that `breakranks why` must give."""
