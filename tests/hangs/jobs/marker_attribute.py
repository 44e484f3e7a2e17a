"""Ranks wait until a download has ended whose marker was left behind; its path is in an attribute, and says nothing."""

import os
import time

from mark import ready, work_path


class Download:
    def __init__(self, name: str) -> None:
        self.marker = work_path(name)

    def wait_until_done(self) -> None:
        while os.path.exists(self.marker):
            time.sleep(0.05)


if __name__ == "__main__":
    ready()
    Download("weights.part").wait_until_done()
