"""What plain Python does is named right, on every Python: symbols, calls and stacks differ between versions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

BREAKRANKS = str(Path(sys.executable).parent / "breakranks")
DEADLINE = 60.0

LOCK = "import threading; l=threading.Lock(); l.acquire(); {ready}; l.acquire()"
PROGRAMS = {
    "thread-wait": LOCK,
    "sleep": "import time; {ready}; time.sleep(600)",
    "io": "import os; os.mkfifo('f'); {ready}; open('f').read()",
    "subprocess": "import subprocess; {ready}; subprocess.run(['sleep', '600'])",
    "file-lock": "import fcntl; a=open('l','w'); fcntl.flock(a,2); b=open('l'); {ready}; fcntl.flock(b,2)",
    "socket": "import socket; a,b=socket.socketpair(); {ready}; a.recv(1)",
    "prompt": "import pdb; {ready}; pdb.set_trace(); print()",
    "event-loop": "import asyncio; {ready}; asyncio.run(asyncio.sleep(600))",
    "compute": "{ready}\nwhile True: pass",
    "helper-wait": "import multiprocessing as m, time\nif __name__ == '__main__':\n"
    " p=m.get_context('fork').Pool(1); {ready}; p.map(time.sleep, [600])",
}


def ask(activity: str, folder: Path) -> dict[str, object]:
    """What `why` makes of one process, at its first two looks."""
    program, ready = PROGRAMS[activity], folder / "ready"
    (folder / "program.py").write_text(program.replace("{ready}", f"open({str(ready)!r}, 'w').close()"))
    process = subprocess.Popen(
        [sys.executable, "program.py"],
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        end = time.monotonic() + DEADLINE
        while not ready.exists():
            assert time.monotonic() < end
            time.sleep(0.02)
        for _ in range(20):  # what it does comes a moment after the mark
            done = subprocess.run(
                [BREAKRANKS, "why", f"pid:{process.pid}", "--json", "--patience", "0", "--interval", "0.2"],
                capture_output=True,
                text=True,
                timeout=DEADLINE,
                check=False,
            )
            answer: dict[str, object] = json.loads(done.stdout)["classes"][0]
            if answer["activity"] == activity:
                break
        return answer
    finally:
        os.killpg(process.pid, 9)
        process.communicate()


@pytest.mark.parametrize("activity", PROGRAMS)
def test_an_activity_is_named(activity: str, tmp_path: Path) -> None:
    answer = ask(activity, tmp_path)
    assert answer["activity"] == activity, answer
