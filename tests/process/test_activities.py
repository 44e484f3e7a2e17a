"""What plain Python does is named right, on every Python: symbols, calls and stacks differ between versions."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from support.processes import Processes
from support.targets import Interpreter, on_every_python_with
from support.waiting import wait_for

from .terminals import BREAKRANKS

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

# Where Pythons differ: how they sleep and lock, and which frames they have.
CORE = ("thread-wait", "sleep", "subprocess", "prompt", "event-loop", "compute", "helper-wait")


def ask(activity: str, folder: Path, interpreter: Interpreter) -> dict[str, object]:
    """What `why` makes of one process, at its first two looks."""
    program, ready = PROGRAMS[activity], folder / "ready"
    (folder / "program.py").write_text(program.replace("{ready}", f"open({str(ready)!r}, 'w').close()"))
    with Processes(folder) as processes:
        process = processes.start(
            [interpreter.path, "program.py"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
        )
        wait_for("the program", ready.exists)
        for _ in range(20):  # what it does comes a moment after the mark
            words = ["why", f"pid:{process.pid}", "--json", "--patience", "0", "--interval", "0.2"]
            answer: dict[str, object] = json.loads(processes.call([BREAKRANKS, *words]).stdout)["classes"][0]
            if answer["activity"] == activity:
                break
        return answer


@on_every_python_with("activity", PROGRAMS, core=CORE)
def test_an_activity_is_named(activity: str, tmp_path: Path, interpreter: Interpreter) -> None:
    answer = ask(activity, tmp_path, interpreter)
    assert answer["activity"] == activity, answer
