"""What makes a host of the rig unlike the others from its start. What befalls a running one is in ``host``."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

HOME = "/run/home"

# Shifts the time of day and nothing else, of every program that is not linked statically. A time namespace
# cannot: it shifts only the clocks that count from the start of the machine.
_CLOCK = r"""
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static time_t ahead(void) {
    const char *text = getenv("RIG_CLOCK");
    return text ? atol(text) : 0;
}

int clock_gettime(clockid_t id, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, id, now);
    if (!failed && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) now->tv_sec += ahead();
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    int failed = syscall(SYS_gettimeofday, now, zone);
    if (!failed) now->tv_sec += ahead();
    return failed;
}

time_t time(time_t *where) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (where) *where = now.tv_sec;
    return now.tv_sec;
}
"""


@dataclass(frozen=True, kw_only=True)
class Odd:
    """One host's own ways.

    ``bashrc`` is run by its login shell before every command of ssh, ``banner`` is shown by its sshd. ``clock``
    is how many seconds its time of day is ahead. With ``refuses`` it lets nobody in.
    """

    bashrc: str = ""
    banner: str = ""
    clock: int = 0
    refuses: bool = False

    def environment(self, rig: Path) -> dict[str, str]:
        """What its processes have in their environment, by ssh or not."""
        found = {"HOME": HOME}
        if self.clock:
            found |= {"LD_PRELOAD": str(rig / "clock.so"), "RIG_CLOCK": str(self.clock)}
        return found

    def write(self, rig: Path, name: str) -> None:
        """Lay out what the init of the host takes."""
        lines = []
        home = rig / f"{name}.home"
        home.mkdir()
        (home / ".bashrc").write_text(self.bashrc)
        if self.banner:
            (rig / f"{name}.banner").write_text(self.banner)
            lines.append(f"Banner {rig}/{name}.banner")
        if self.refuses:
            lines.append("AuthorizedKeysFile none")
        if self.clock:
            build_clock(rig)
            variables = self.environment(rig)
            # One line: of several, sshd takes the first.
            lines.append("SetEnv " + " ".join(f"{name}={variables[name]}" for name in ("LD_PRELOAD", "RIG_CLOCK")))
        # In front: of two lines for one keyword, sshd takes the first.
        (rig / f"{name}.sshd_config").write_text("".join(line + "\n" for line in lines))


def build_clock(rig: Path) -> None:
    if (rig / "clock.so").exists():
        return
    if shutil.which("gcc") is None:
        raise RuntimeError("gcc is not here, and a clock of its own is built; apt-get install build-essential")
    build = ["gcc", "-shared", "-fPIC", "-O1", "-x", "c", "-o", str(rig / "clock.so"), "-"]
    subprocess.run(build, input=_CLOCK, text=True, check=True, timeout=60)
