"""`-v`, `-vv` and BREAKRANKS_LOG tell what was run, asked and refused, here and on hosts, and no secrets."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from breakranks.cli.main import COMMANDS

DEADLINE = 120.0
SECRETS = ("topsecret-env", "topsecret-word", "topsecret-set-up", "topsecret-target")
LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} (INFO|DEBUG) (?:(\S+):)?([a-z]+)\[(\d+)\] (.+)")
JOB = """
import os, sys, time
def load_batch(): time.sleep(1000)
open(sys.argv[1], "w").close()
load_batch()
"""


class Job:
    """One process of a job, which was started with secrets in its environment and its command line."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = str(20_000 + os.getpid() % 20_000)
        program = folder / "train.py"
        program.write_text(JOB)
        env = {**os.environ, "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost"}
        env |= {"MASTER_PORT": self.port, "WANDB_API_KEY": SECRETS[0]}
        words = [sys.executable, str(program), str(folder / "ready"), "--hf-token", SECRETS[1]]
        self.process = subprocess.Popen(words, env=env, stdin=subprocess.DEVNULL)
        until = time.monotonic() + DEADLINE
        while not (folder / "ready").exists():
            assert time.monotonic() < until and self.process.poll() is None
            time.sleep(0.02)

    def breakranks(self, *words: str, log: Path | str = "", status: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "breakranks", *words],
            env={**os.environ, "BREAKRANKS_RUN": str(self.folder / "run"), "BREAKRANKS_LOG": str(log)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE,
        )
        assert done.returncode == status, done
        return done

    def stacks(self, *words: str, log: Path | str = "") -> subprocess.CompletedProcess[str]:
        return self.breakranks("stacks", "--job", f"python-{self.port}", *words, log=log)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    started = Job(tmp_path)
    try:
        yield started
    finally:
        started.process.kill()
        started.process.wait()


def lines(text: str) -> list[tuple[str, str, str, str]]:
    """Level, host, room and message of each line; everything must be a line."""
    found = []
    for line in text.splitlines():
        matched = LINE.fullmatch(line)
        assert matched, line
        found.append((matched[1], matched[2] or "", matched[3], matched[5]))
    return found


def test_nothing_is_logged_unless_it_is_asked_for(job: Job) -> None:
    assert job.stacks().stderr == ""


def test_v_tells_the_job_the_sample_and_the_end(job: Job) -> None:
    told = lines(job.stacks("-v").stderr)
    assert {level for level, *_ in told} == {"INFO"}
    messages = [message for *_, message in told]
    assert any(re.match(rf"job name=python-{job.port} .*pids={job.process.pid}\b", text) for text in messages), told
    assert any(re.match(r"sample taken .*stacks=1 .*ms=[\d.]+", text) for text in messages), told
    assert re.match(r"command argv=.*stacks.*version=", messages[0])
    assert re.match(r"ended status=0 ms=[\d.]+", messages[-1])


def test_vv_tells_every_program_that_was_run(job: Job) -> None:
    told = lines(job.stacks("-vv").stderr)
    pid = job.process.pid
    ran = rf'ran argv=".*py-spy\S? dump --json --pid {pid}" status=0 bytes=\d+ ms=[\d.]+'
    observed = [message for level, _, room, message in told if (level, room) == ("DEBUG", "observe")]
    assert any(re.match(ran, message) for message in observed), told


def test_what_is_injected_is_told(job: Job) -> None:
    told = lines(job.breakranks("eval", "-vv", "--job", f"python-{job.port}", "1 + 1").stderr)
    assert any(re.match(rf"injected payload=load_modules pid={job.process.pid} ", one[-1]) for one in told), told


def test_what_is_refused_is_told(job: Job) -> None:
    """GIVEN a process that strace traces WHEN its stack is asked for THEN the log says who refused it."""
    tracer = subprocess.Popen(["strace", "-qq", "-o", "/dev/null", "-p", str(job.process.pid)])
    try:
        status = Path(f"/proc/{job.process.pid}/status")
        until = time.monotonic() + DEADLINE
        while f"TracerPid:\t{tracer.pid}\n" not in status.read_text():
            assert time.monotonic() < until
            time.sleep(0.02)
        told = lines_of(job.breakranks("stacks", "-v", "--job", f"python-{job.port}", "--no-inject", status=2).stderr)
    finally:
        tracer.terminate()
        tracer.wait()
    wanted = f'Python stack refused pid={job.process.pid} why="process {job.process.pid} is already traced by'
    assert any(one[-1].startswith(wanted) for one in told), told


def lines_of(text: str) -> list[tuple[str, str, str, str]]:
    """The lines of the log in a text that has others, too."""
    return lines("\n".join(line for line in text.splitlines() if LINE.fullmatch(line)))


def test_the_file_has_everything_and_is_private(job: Job) -> None:
    """GIVEN a file THEN it has what -vv tells, without -v nothing is on standard error, and a second run appends."""
    log = job.folder / "a log"
    assert job.stacks(log=log).stderr == ""
    first = log.read_text()
    assert {level for level, *_ in lines(first)} == {"INFO", "DEBUG"}
    assert log.stat().st_mode & 0o777 == 0o600
    said = job.stacks("-v", log=log).stderr
    assert {level for level, *_ in lines(said)} == {"INFO"}
    assert log.read_text().startswith(first) and len(log.read_text()) > len(first)


@pytest.mark.parametrize("name", ["nowhere/log", "."])
def test_a_file_that_cannot_be_written(job: Job, name: str) -> None:
    path = str(job.folder / name)
    done = job.breakranks("ps", log=path, status=2)
    assert re.match(
        rf"breakranks: BREAKRANKS_LOG names {re.escape(path)}, which cannot be written: .+\n  \S", done.stderr
    )
    assert done.stdout == ""


# What makes a command end at once, so that no test depends on which jobs are here.
ENDS = {"eval": ("--timeout=0", "1"), "probe": ("--times=0", "a.py:1", "1"), "demo": ("--help",)}


@pytest.mark.parametrize("words", ["-v C", "C -v", "C -vv", "-vv C --verbose", "--verbose C"])
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_takes_v_before_and_after_it(tmp_path: Path, command: str, words: str) -> None:
    log = tmp_path / "log"
    done = subprocess.run(
        [sys.executable, "-m", "breakranks", *words.replace("C", command).split(), *ENDS.get(command, ("exec:x",))],
        env={**os.environ, "BREAKRANKS_LOG": str(log), "BREAKRANKS_RUN": str(tmp_path / "run")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    if command == "demo":  # it would start a job
        assert done.returncode == 0 and "--verbose" in done.stdout, done
    else:
        assert "command argv=" in done.stderr, done
        assert log.read_text().count("command argv=") == 1


HOST = "exec:env API_TOKEN=topsecret-target BREAKRANKS_TEST={host}@here"


def test_a_host_logs_what_it_does(job: Job) -> None:
    """GIVEN a job on a host THEN its log comes over the channel, with its name; and no secret is in any of it."""
    log = job.folder / "log"
    words = (HOST, "--deadline=60", "-v", "--setup", "export MY_PASSWORD=topsecret-set-up; true 'quoted'")
    done = job.stacks(*words, log=log)
    told = lines(log.read_text())
    here = [message for _, host, room, message in told if (host, room) == ("", "hosts")]
    for wanted in (
        r'started argv="env API_TOKEN=\*\*\* BREAKRANKS_TEST=here sh -c \(agent\)" child=\d+ hosts=1',
        r"host connected host=here python=\S+ user=\S+ agent=\d+ shipped=(True|False) ms=[\d.]+",
        r"asked to=\S+ request=FindJobs id=\d+ bytes=\d+",
        r"host answered host=here answer=JobsFound id=\d+ bytes=\d+ ms=[\d.]+",
        r"host answered host=here answer=SampleTaken id=\d+ bytes=\d+ ms=[\d.]+",
        r"ran argv=env child=\d+ status=\S+ received=\d+ ms=[\d.]+",
    ):
        assert any(re.fullmatch(wanted, message) for message in here), (wanted, here)
    there = [(level, room, message) for level, host, room, message in told if host == "here"]
    assert any(room == "jobs" and message.startswith("looked for jobs ") for _, room, message in there), told
    assert any((level, room) == ("DEBUG", "observe") and "py-spy" in message for level, room, message in there), told
    assert any(message.startswith("request done request=TakeSample ") for *_, message in there), told
    # Standard error was asked for less, and has less, of hosts too.
    assert {level for level, host, *_ in lines_of(done.stderr) if host == "here"} == {"INFO"}
    for secret in SECRETS:
        assert secret not in log.read_text() + done.stderr
        for form in (secret.encode().hex(), *base64_forms(secret)):
            assert form not in log.read_text() + done.stderr


def base64_forms(text: str) -> list[str]:
    """How a text looks inside a longer one that is coded."""
    import base64

    coded = [base64.b64encode(b"x" * shift + text.encode()).decode() for shift in range(3)]
    return [one[4:-4] for one in coded]


def test_a_host_that_is_lost_is_told_with_the_reason(job: Job) -> None:
    done = job.breakranks("stacks", "-v", "exec:false {host}@here", status=2)
    lost = [one[-1] for one in lines_of(done.stderr) if one[-1].startswith("host lost host=here kind=")]
    assert len(lost) == 1 and "why=" in lost[0], done.stderr
    assert any(re.match(r"ran argv=false child=\d+ status=1 ", one[-1]) for one in lines_of(done.stderr)), done.stderr


OLD_AGENT = """
import re, sys
from breakranks.hosts.host_messages import REQUESTS
del REQUESTS["send-log"]
from breakranks.hosts.host_agent import serve
serve(0, 1, nonce=re.search("@br1 ([0-9a-f]{16}) ", " ".join(sys.argv))[1])
"""


def test_a_host_that_cannot_send_its_log_answers_all_the_same(job: Job) -> None:
    """GIVEN an agent that does not know the request for its log."""
    agent = job.folder / "old agent.py"
    agent.write_text(OLD_AGENT)
    target = f"exec:{shlex.join([sys.executable, str(agent)])} {{host}}@here"
    done = job.stacks(target, "--deadline=60", "-vv")
    told = lines_of(done.stderr)
    assert "load_batch" in done.stdout
    assert any(one[-1].startswith("host answered host=here answer=SampleTaken ") for one in told), done.stderr
    assert not any(host for _, host, *_ in told)


def test_code_that_is_sent_is_told(job: Job) -> None:
    """GIVEN a host whose Python has no breakranks THEN it is told what was sent."""
    done = job.stacks("exec:env -u PYTHONPATH X={host}@here", "--deadline=60", "-v", "--python", "/usr/bin/python3")
    told = [one[-1] for one in lines_of(done.stderr)]
    assert any(re.match(r"host lacks code host=here have=\S* python=3", message) for message in told), told
    assert any(re.match(r"code sent host=here bytes=\d{5,}", message) for message in told), told
    assert any(re.match(r"host connected host=here .* shipped=True", message) for message in told), told


def test_without_a_log_logging_is_not_imported() -> None:
    """It would be a part of the time that every command takes to start; and a rank has loggers of its own."""
    code = "import sys\nfrom breakranks.cli.main import main\nmain(['ps'])\nsys.exit('logging' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode == 0, done
    code = "import sys, breakranks\nbreakranks.breakpoint, breakranks.print\nsys.exit('breakranks.log' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode == 0, done
