"""A Python with this breakranks that another user can run, even if the checkout and the Python here are private."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import breakranks

NOBODY = 65534
_NOT_NEEDED = shutil.ignore_patterns(
    "__pycache__", "site-packages", "test", "tests", "idlelib", "config-*", "ensurepip"
)


@dataclass(frozen=True)
class Nobody:
    """``folder`` is readable by all users, ``own`` belongs to the user `nobody`."""

    folder: Path
    python: Path

    @property
    def own(self) -> Path:
        return self.folder / "own"

    def run(self, words: Sequence[str], timeout: float) -> subprocess.CompletedProcess[str]:
        """Run Python as the user `nobody`, with these arguments."""
        return subprocess.run(
            self.command(words), env=self.environ(), cwd="/", capture_output=True, text=True, timeout=timeout
        )

    def command(self, words: Sequence[str]) -> list[str]:
        """The command that runs Python as the user `nobody`, with these arguments."""
        return ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", str(self.python), *words]

    def environ(self) -> dict[str, str]:
        """The environment of that command."""
        env = {"PATH": os.defpath, "HOME": str(self.own), "BREAKRANKS_RUN": str(self.own)}
        return {
            **env,
            "PYTHONPATH": str(self.folder / "packages"),
            "LD_LIBRARY_PATH": str(self.python.parents[1] / "lib"),
        }


@contextlib.contextmanager
def nobody() -> Iterator[Nobody]:
    """Copies of this Python, of breakranks and of its dependencies, in a folder under /tmp. Needs root."""
    folder = Path(tempfile.mkdtemp(prefix="breakranks-nobody-", dir="/tmp"))
    try:
        packages = folder / "packages"
        shutil.copytree(Path(breakranks.__file__).parent, packages / "breakranks", ignore=_NOT_NEEDED)
        for name in ("msgspec", "ahocorasick_rs"):
            spec = importlib.util.find_spec(name)
            assert spec is not None and spec.origin is not None
            shutil.copytree(Path(spec.origin).parent, packages / name, ignore=_NOT_NEEDED)
        python = _copy_of_python(folder / "python")
        for path in (folder, *folder.rglob("*")):
            if not path.is_symlink():
                path.chmod(path.stat().st_mode | (0o555 if path.is_dir() or os.access(path, os.X_OK) else 0o444))
        made = Nobody(folder, python)
        made.own.mkdir(mode=0o700)
        os.chown(made.own, NOBODY, NOBODY)
        yield made
    finally:
        shutil.rmtree(folder)


def _copy_of_python(folder: Path) -> Path:
    """Copy the interpreter and its standard library, which it finds beside itself."""
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    base = Path(sys.base_prefix)
    shutil.copytree(base / "lib" / version, folder / "lib" / version, ignore=_NOT_NEEDED)
    for library in (base / "lib").glob("libpython3*.so*"):
        shutil.copy(library, folder / "lib" / library.name)
    dynamic = Path(sysconfig.get_path("stdlib"), "lib-dynload")
    assert dynamic.is_dir(), dynamic
    (folder / "bin").mkdir()
    return Path(shutil.copy(Path(sys.executable).resolve(), folder / "bin" / version))
