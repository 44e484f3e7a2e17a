"""The other Pythons on this machine, for jobs that run on them and are asked by the Python of the tests."""

from __future__ import annotations

import subprocess
from pathlib import Path

VERSIONS = ("3.10", "3.12", "3.13")


def interpreter(version: str) -> str | None:
    """The path of a Python of this version, or None if pyenv has none."""
    try:
        said = subprocess.run(["pyenv", "root"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    found = sorted(Path(said.strip(), "versions").glob(f"{version}.*/bin/python{version}"))
    return str(found[-1]) if found else None
