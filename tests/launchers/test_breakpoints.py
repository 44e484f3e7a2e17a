"""Real jobs under real launchers stop at breakpoints, are asked by the real console, and end as if never stopped."""

from __future__ import annotations

import importlib.util
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from breakranks.jobs.found_jobs import FoundJob
from breakranks.rankset import RankSet
from cluster.slurm import Slurm
from support.consoles import records, without_waits
from support.processes import inherited
from support.stalls import undisturbed
from support.waiting import DEADLINE_SECONDS

from .running import BIN, HERE, PYTHON, Launch, free_port, rank_of, wait_for

PLAIN = str(HERE / "breakpoint_program.py")
TORCH = str(HERE / "torch_breakpoint_program.py")
CONSOLE = str(BIN / "breakranks")
PROMPT = r"(?m:^)(?:\x1b\[K)?\[[0-9a-z -]+\] > \Z"
ALL_FOUR = r"(?m:^)(?:\x1b\[K)?\[0-3\] > \Z"
Record = dict[str, Any]


class Job(Launch):
    """A launch with a folder of its own for the agents: its console sees this job and no other."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        super().__init__(folder)
        self.agents = tempfile.mkdtemp(prefix="breakranks-test-", dir="/tmp")
        self.env = {"BREAKRANKS_RUN": self.agents}

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        shutil.rmtree(self.agents)

    def start(self, *command: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[Any]:
        return super().start(*command, env={**self.env, **(env or {})})

    def console(self, *commands: str, status: int = 0) -> list[Record]:
        """What the console says to these commands, a record each."""
        asked = [word for command in commands for word in ("-c", command)]
        patience = ["--wait", str(DEADLINE_SECONDS), "--timeout", str(DEADLINE_SECONDS)]
        done = subprocess.run(
            [CONSOLE, "console", "--json", *patience, *asked],
            env=self.outside, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=3 * DEADLINE_SECONDS,
        )  # fmt: skip
        assert done.returncode == status, f"{done.returncode} {done.stdout} {done.stderr}\n{self.output}"
        return records(done.stdout)

    def ask(self, *commands: str) -> list[dict[str, str]]:
        """The answers alone, by ranks."""
        return [texts(record) for record in self.console(*commands) if "answers" in record]

    def all_stop(self, *ranks: int) -> Record:
        """Wait until exactly these ranks are stopped; what `ranks` says of them."""

        def so() -> Record | None:
            (table,) = self.console("ranks")
            return (
                table if [one["rank"] for one in table["ranks"] if one["state"] == "stopped"] == list(ranks) else None
            )

        return wait_for(f"ranks {ranks} stop", so)

    @property
    def outside(self) -> dict[str, str]:
        """The environment of a console: not that of a rank."""
        return {**inherited(), **self.env}

    def passed(self, what: str) -> list[int]:
        """The ranks that have come to a place of the program."""
        return sorted(int(path.suffix[1:]) for path in self.folder.glob(f"{what}.*"))

    def all_pass(self, what: str, *ranks: int) -> None:
        wait_for(f"ranks {ranks} pass {what}", lambda: self.passed(what) == list(ranks))

    def give_word(self, word: str) -> None:
        """What a program waits for in a place of its own."""
        (self.folder / word).touch()

    def ends(self, *codes: int) -> None:
        """All processes end by themselves, with these codes; without any, all with 0."""
        ended = [process.wait(timeout=120) for process in self.started]
        assert ended == (list(codes) or [0] * len(ended)), self.output

    def said(self, word: str) -> dict[str, list[str]]:
        """What the ranks printed after a word, by rank."""
        found: dict[str, list[str]] = {}
        # mpirun passes on what it has read of a rank, and that may be a line without its end.
        output = re.sub(rf"(?<=\d){word} ", f"\n{word} ", self.output)
        for rank, text in re.findall(rf"^{word} (\d+) (.*)$", output, re.MULTILINE):
            found.setdefault(rank, []).append(text)
        for rank, text in re.findall(rf"\[rank (\d+)\] {word} (.*)$", output, re.MULTILINE):
            found.setdefault(rank, []).append(text)
        return found


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    with Job(tmp_path) as running:
        yield running


def need(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.fail(f"{package} is not installed in {PYTHON}; scripts/setup --test installs what the tests launch")


def texts(record: Record) -> dict[str, str]:
    """What the ranks answered, by ranks."""
    return {one["ranks"]: one["text"] for one in record["answers"]}


def states(record: Record) -> dict[int, str]:
    """What `ranks` says of each."""
    return {one["rank"]: one.get("role") or one["state"] for one in record["ranks"]}


# --- training: 4 ranks ------------------------------------------------------------------------


class Training(NamedTuple):
    """What was said while 4 ranks trained with DDP and then with FSDP2, and were stopped in both."""

    ddp: list[Record]
    fsdp: list[Record]
    inside: str
    output: dict[str, list[str]]


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Training]:
    need("torch")
    with Job(tmp_path_factory.mktemp("training")) as job:
        job.by_hand(4, TORCH, "training")
        job.all_stop(0, 1, 2, 3)
        ddp = job.console(
            "ranks", "w", "p loss", "all p loss", "p model(x)", "n", "n", "all n", "all n",
            status=1,  # something was refused, and somebody waited
        )  # fmt: skip
        job.all_stop(0, 1, 2, 3)  # rank 0 is back from what it waited in
        ddp += job.console("all n", "all p next(model.parameters()).grad", "go")
        job.all_stop(0, 1, 2, 3)
        weight = "model.layers[0].line.weight"
        fsdp = job.console(
            "p model(x)", f"p {weight}.full_tensor()", "p loss.backward()",
            f"all p {weight}.full_tensor().sum().item()", "all p model(x).sum().item()",
            f"p {weight}", "p model.state_dict()",
            "all p {name: value.to_local().shape for name, value in model.state_dict().items()}", "go",
            status=1,
        )  # fmt: skip
        with Typed(job) as typed:
            typed.until_prompt(prompt=ALL_FOUR)
            typed.type("all p self.line.weight.shape")
            typed.type("c", ALL_FOUR)
            typed.type("rank 0 n")
            typed.type("rank 0 n")  # waits for the others, and the prompt comes back for what is to be done
            typed.type("rank 1-3 n")
            typed.type("rank 1-3 n", ALL_FOUR)
            typed.type("all n")
            typed.type("all p given.sum().item()")
            typed.type("go")
        job.ends()
        yield Training(ddp, fsdp, without_waits(typed.text), job.said("RESULT"))


class Typed:
    """A console in a terminal, and a person who types."""

    def __init__(self, job: Job) -> None:
        self._own, self._terminal = pty.openpty()
        self._console = subprocess.Popen(
            ["setsid", "--ctty", CONSOLE, "console"],
            env={**job.outside, "TERM": "dumb", "COLUMNS": "160", "XDG_STATE_HOME": str(job.folder)},
            stdin=self._terminal, stdout=self._terminal, stderr=self._terminal,
        )  # fmt: skip
        os.close(self._terminal)
        self.text = ""

    def __enter__(self) -> Typed:
        return self

    def __exit__(self, *_: object) -> None:
        self._console.kill()
        self._console.wait(timeout=60)
        os.close(self._own)

    def type(self, line: str, prompt: str = PROMPT) -> None:
        """Type a line, and wait until the next prompt waits, or one that is drawn anew when another rank stops."""
        os.write(self._own, f"{line}\n".encode())
        self.until_prompt(rf"> {re.escape(line)}\n[^\0]*", after=len(self.text) - 10, prompt=prompt)

    def until_prompt(self, before: str = "", after: int = 0, prompt: str = PROMPT) -> None:
        end = time.monotonic() + 120
        while True:
            there = re.search(before + prompt, self.text[after:])
            ready, _, _ = select.select([self._own], [], [], 0.15 if there else 120)
            if there and not ready:  # else it is being drawn anew
                return
            assert ready and time.monotonic() < end, f"no prompt: {self.text}"
            try:
                chunk = os.read(self._own, 65536)
            except OSError:  # the console has left, as it should when the job has ended
                assert "the job has ended" in self.text, self.text
                return
            self.text += chunk.decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n")


def test_one_rank_stops_and_the_others_are_held(training: Training) -> None:
    ranks, w, loss, losses, refused, *_ = training.ddp
    assert states(ranks) == {0: "prompt", 1: "held", 2: "held", 3: "held"}
    assert {one["where"]["function"] for one in ranks["ranks"]} == {"train"}
    assert re.search(r"ddp\(\)\n.*\n> .*torch_breakpoint_program.py\(\d+\)train\(\)\n-> breakr", texts(w)["0"])
    assert texts(loss)["0"].startswith("tensor(0.00")
    assert list(texts(losses)) == ["0", "1", "2", "3"]
    assert losses["numbers"]["min"]["ranks"] == "0"
    assert losses["numbers"]["max"]["ranks"] == "3"
    assert losses["numbers"]["min"]["value"] == pytest.approx(0.00183165, rel=1e-4)
    assert "refused: forward of Net (DDP)" in texts(refused)["0"]
    assert "ranks 1-3 would not take part" in texts(refused)["0"]


def test_who_steps_alone_into_a_collective_is_told_whom_it_waits_for(training: Training) -> None:
    *_, others, together, all_four, gradient = (one for one in training.ddp if "answers" in one)
    first, waits, *_ = training.ddp[5:]
    go = training.ddp[training.ddp.index(gradient) + 1 :]
    assert texts(first)["0"].endswith("-> loss.backward()")
    assert re.match(r"rank 0 waits in \w+ for ranks 1-3, which are held: ", waits["notice"])
    assert texts(others)["1-3"].endswith("-> loss.backward()")
    assert texts(together)["1-3"].endswith("-> optimizer.step()")
    assert texts(all_four)["0-3"].endswith("-> optimizer.zero_grad()")
    assert list(texts(gradient)) == ["0-3"]
    assert gradient["tensors"]["identical"] is True
    assert going(*go) == RankSet(range(4))


def test_collectives_of_fsdp_are_refused_on_a_part_of_the_ranks_and_work_on_all(training: Training) -> None:
    forward, full, backward, all_full, all_forward, weight, state, shapes, *_ = training.fsdp
    assert "refused: forward of Net (FSDP2)" in texts(forward)["0"]
    assert "refused: full_tensor" in texts(full)["0"]
    assert "refused: backward of Net (FSDP2)" in texts(backward)["0"]
    assert list(texts(all_full)) == ["0-3"]
    assert float(texts(all_full)["0-3"])
    assert [one["error"] for one in all_forward["answers"]] == [False] * 4
    assert all_forward["numbers"]["spread"] > 0
    assert "shard (2, 8)" in weight["answers"][0]["value"]["local"]
    assert "refused: state_dict of Net (FSDP2)" in texts(state)["0"]
    assert texts(shapes)["0-3"].count("torch.Size([2, 8])") == 3


def test_a_stop_inside_a_forward_says_what_is_whole_there_and_is_left_by_stepping_together(training: Training) -> None:
    first, _, second = training.inside.partition("ranks 0-3 resume\n")
    assert "inside the forward of FSDP2 module layers.0 (Block)" in first
    assert "The parameters of module 'layers.0' are gathered" in first
    assert "[0-3] torch.Size([8, 8])" in first
    assert "inside the forward of FSDP2 module the root module (Net)" in second
    assert re.search(r"rank 0 waits in all_gather\w* for ranks 1-3, which are held", second)
    assert re.search(r"> all n\n\[0-3\]\n> .*\n-> return torch.relu", second)
    assert re.search(r"min 0\.4438 \(rank 3\)  max 0\.8917 \(rank 0\)", second)


def test_a_stop_inside_a_forward_says_how_to_leave_it(training: Training) -> None:
    assert "To pass the next all-gather, step all ranks" in training.inside


def test_training_that_was_stopped_ends_at_the_same_bits(training: Training) -> None:
    assert training.output == {str(rank): ["same", "same"] for rank in range(4)}


# --- timeouts -------------------------------------------------------------------------------------------


def test_a_stop_of_three_timeouts_breaks_nothing_and_they_are_back_afterwards(tmp_path: Path) -> None:
    need("torch")
    folders = (tmp_path / str(number) for number in range(9))
    undisturbed(lambda: stop_for_three_timeouts(next(folders)), 3)  # the groups have timeouts of their own


def stop_for_three_timeouts(folder: Path) -> None:
    folder.mkdir()
    ways = [("hold", "OFF"), ("hold", "DETAIL"), ("run", "OFF")]  # DETAIL's check keeps its timeout
    with ExitStack() as ending:
        jobs = {way: ending.enter_context(Job(folder / "-".join(way))) for way in ways}
        for (others, debug), job in jobs.items():
            ranks = 3 if (others, debug) == ("run", "OFF") else 2
            job.by_hand(ranks, TORCH, "timeouts", others, env={"TORCH_DISTRIBUTED_DEBUG": debug})
        for job in jobs.values():
            wait_for("all ranks", lambda job=job: len(list(job.folder.glob("ready.*"))) == len(job.started))  # type: ignore[misc]
        during = {}
        for way, job in jobs.items():  # one after the other: who makes its groups has little time for it
            (job.folder / "begin").touch()
            during[way] = job.console("p timeouts_now()")
        time.sleep(10)
        for way, job in jobs.items():
            assert texts(during[way][0]) == {"0": "'86400,86400'"}
            assert job.said("RESULT") == {}
            assert [process.poll() for process in job.started] == [None] * len(job.started), job.output
            job.console("p timeouts_now()", "go")
        for (others, _), job in jobs.items():
            job.all_stop(*range(len(job.started)))
            (first, *_) = job.console("all p first", "go")
            assert "86400" not in str(texts(first)), first
            job.ends()
            if others == "hold":
                expected = {"0": ["2 met 3,3 3,3"], "1": ["2 met 3,3 3,3"]}
            else:
                expected = {"0": ["3 met 3,3,6 3,3,6"], "1": ["2 waited 3,3 3,3"], "2": ["3 waited 3,3,6 3,3,6"]}
            assert job.said("RESULT") == expected


# --- launchers ------------------------------------------------------------------------------------------


def is_found(job: Job, launcher: str, key: str, ranks: int, name: str = "RANK") -> FoundJob:
    """The job, which is found while it stands: its ranks under the numbers that they were given, and nobody else."""
    found = job.job()
    assert (found.job.key, found.job.launcher, found.job.world_size) == (key, launcher, ranks)
    assert [rank.rank for rank in found.ranks] == list(range(ranks))
    assert [rank_of(rank.pid, name) for rank in found.ranks] == list(range(ranks))
    assert found.missing == ()
    return found


def going(*said: Record) -> RankSet:
    """The ranks that a `go` has let go; one that takes long is said to go on later."""
    found = RankSet()
    for one in said:
        told = re.match(r"ranks? (\S+) (?:resumes|resume|is busy|are busy)", one["notice"])
        assert told, one
        found |= RankSet.parse(told[1])
    return found


def stop_three_times(job: Job, ranks: int) -> None:
    """Ask, step and let go ranks of the program's ``steps``, however they were started."""
    everyone = range(ranks)
    assert states(job.all_stop(*everyone)) == {0: "prompt", **dict.fromkeys(everyone[1:], "held")}
    assert job.passed("step0") == []
    said = job.console(
        "w", "p loss", "all p loss", "all n", "all n", "all p twice", "go",
    )  # fmt: skip
    w, loss, losses, _, _, twice, *go = said
    assert "breakpoint_program.py" in texts(w)["0"]
    assert texts(loss) == {"0": "0.0"}
    assert texts(losses) == {str(rank): f"{rank}.0" for rank in everyone}
    assert (losses["numbers"]["min"]["value"], losses["numbers"]["max"]["value"]) == (0.0, ranks - 1.0)
    assert texts(twice) == {str(rank): f"{2 * rank}.0" for rank in everyone}
    assert going(*go) == RankSet(everyone)
    job.all_stop(*everyone)
    loss, c, others, *more = job.console("p loss", "c", "p loss", "go")
    (again,) = (one for one in more if "answers" in one)  # where one takes long, that is said before it
    assert (texts(loss), c["notice"], texts(again)) == ({"0": "0.5"}, "rank 0 resumes", {"0": "1.0"})
    assert re.match(r"ranks? [1-9,-]+ resumes?, held until now", others["notice"])
    job.ends()
    assert job.said("TOTAL") == {str(rank): [f"{3.0 + 6 * rank}"] for rank in everyone}


def test_plain_processes(job: Job) -> None:
    job.by_hand(4, PLAIN, "steps")
    told = "breakranks: rank 0 stopped at breakpoint_program.py"
    wait_for("rank 0 says where it is", lambda: told in job.output)  # before a console is there
    stop_three_times(job, 4)
    # To the same place as rank 0. Only where that takes long they say that it has not come.
    held = [line for line in job.output.splitlines() if "is held" in line and "not reached this line" not in line]
    assert held == []
    assert os.listdir(job.agents) in ([], ["print.lock"])


def test_srun(job: Job, slurm: Slurm) -> None:
    job.start("srun", "--overlap", "-n3", PYTHON, PLAIN, "steps", env=slurm.environment)
    stop_three_times(job, 3)


def test_mpirun(job: Job) -> None:
    need("mpi4py")
    job.start("mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "3", PYTHON, PLAIN, "mpi")
    assert states(job.all_stop(0, 1, 2)) == {0: "prompt", 1: "held", 2: "held"}
    mine, refused, total, *_ = job.console(
        "all p mine", "p comm.allreduce(mine)", "all p comm.allreduce(mine)", "all n", "go", status=1
    )
    assert texts(mine) == {"0": "1", "1": "10", "2": "100"}
    assert "refused: allreduce" in texts(refused)["0"]
    assert texts(total) == {"0-2": "111"}
    job.ends()
    assert job.said("TOTAL") == {str(rank): ["111"] for rank in range(3)}


def test_torch_multiprocessing_spawn(job: Job) -> None:
    need("torch")
    job.start(PYTHON, TORCH, "spawn", str(job.folder))
    assert states(job.all_stop(0, 1)) == {0: "held", 1: "prompt"}
    mine, all_mine, refused, *_ = job.console("p index", "all p mine", "p dist.all_reduce(mine)", "go", status=1)
    assert texts(mine) == {"1": "1"}
    assert (all_mine["tensors"]["identical"], len(all_mine["tensors"]["rows"])) == (False, 2)
    assert "refused: all_reduce" in texts(refused)["1"]
    job.ends()
    assert job.said("RESULT") == {"0": ["6.0"], "1": ["6.0"]}


def test_accelerate(job: Job) -> None:
    need("accelerate")
    port = free_port()
    agent = job.start(
        str(BIN / "accelerate"), "launch", "--multi_gpu", "--num_processes=2", "--num_machines=1",
        "--mixed_precision=no", "--dynamo_backend=no", f"--main_process_port={port}", PLAIN, "steps",
    )  # fmt: skip
    job.all_stop(0, 1)
    found = is_found(job, "accelerate", f"accelerate-{port}", 2)
    assert found.job.launcher_pid == agent.pid
    stop_three_times(job, 2)


def test_deepspeed(job: Job) -> None:
    need("deepspeed")
    port = free_port()
    job.start(
        str(BIN / "deepspeed"), "--num_gpus=2", f"--master_port={port}", "--no_local_rank", PLAIN, "steps",
        env={"DS_ACCELERATOR": "cpu"},
    )  # fmt: skip
    job.all_stop(0, 1)
    found = is_found(job, "deepspeed", f"deepspeed-{port}", 2)
    assert any("deepspeed.launcher.launch" in word for word in found.job.command)
    stop_three_times(job, 2)


def test_lightning(job: Job) -> None:
    need("lightning")
    parent = job.start(PYTHON, str(HERE / "lightning_breakpoint_program.py"), "2")
    assert states(job.all_stop(0, 1)) == {0: "prompt", 1: "held"}
    found = job.job()  # whose first rank is the parent of the others
    assert (found.job.launcher, found.job.world_size, found.missing) == ("lightning", 2, ())
    assert [rank.rank for rank in found.ranks] == [0, 1]
    assert found.ranks[0].pid == parent.pid
    assert rank_of(found.ranks[1].pid, "LOCAL_RANK") == 1
    mine, refused, *_ = job.console("all p mine.item()", "p fabric.all_reduce(mine)", "go", status=1)
    assert texts(mine) == {"0": "1.0", "1": "10.0"}
    assert "refused: barrier" in texts(refused)["0"]  # which Lightning begins with
    job.ends()
    assert job.said("RESULT") == {"0": ["11.0"], "1": ["11.0"]}


def test_msrun(job: Job) -> None:
    need("mindspore")
    port = free_port()
    agent = job.start(
        str(BIN / "msrun"), "--worker_num=2", "--local_worker_num=2", f"--master_port={port}", "--join=True",
        f"--log_dir={job.folder / 'logs'}", str(HERE / "mindspore_breakpoint_program.py"),
        env={"PATH": f"{BIN}:{os.environ['PATH']}"},
    )  # fmt: skip
    assert states(job.all_stop(0, 1)) == {0: "prompt", 1: "held"}
    found = is_found(job, "msrun", f"msrun-{port}", 2, "RANK_ID")
    assert found.job.launcher_pid == agent.pid
    roles = {pid: role_of(pid) for pid in job.pids()}
    assert [roles[rank.pid] for rank in found.ranks] == ["MS_WORKER"] * 2
    assert "MS_SCHED" in roles.values()  # which is there too, and is no rank
    summed, mine, refused, total, *_ = job.console(
        "all p summed", "all p mine", "p reduce(mine)", "all p float(reduce(mine).asnumpy().sum())", "go", status=1
    )
    told = summed["tensors"]
    assert (told["identical"], told["rows"][0]["shape"], told["rows"][0]["max"]) == (True, [2, 2], 12.0)
    assert [(row["ranks"], row["mean"]) for row in mine["tensors"]["rows"]] == [("0", 2.5), ("1", 5.0)]
    assert "refused: AllReduce needs ranks 0-1" in texts(refused)["0"]
    assert texts(total) == {"0-1": "30.0"}
    # How msrun ends says nothing: MindSpore 2.10's scheduler fails half a minute after a job that never stopped, too.
    for rank in range(2):
        log = job.folder / "logs" / f"worker_{rank}.log"
        result = f"[rank {rank}] RESULT [[9.0, 18.0], [27.0, 36.0]]"
        wait_for(f"worker {rank} ends", lambda log=log, result=result: result in log.read_text(errors="replace"))


def role_of(pid: int) -> str:
    words = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    return next((word.partition("=")[2] for word in words if word.startswith("MS_ROLE=")), "")


def test_torchrun_that_shows_another_rank_says_there_where_to_go(job: Job) -> None:
    """Rank 0's words are thrown away, and it comes last: rank 1 does not know where they go when it stops."""
    need("torch")
    job.torchrun(2, "--local-ranks-filter=1", "--redirects=0:3", PLAIN, "late", "0")
    # If that takes rank 0 longer than a few seconds, it also says that nobody has come there.
    told = r"breakranks: rank 1 is held at .* for rank 0\b.*; connect with: breakranks console"
    job.all_pass("there", 1)
    job.give_word("come")
    wait_for("rank 1 says where to go", lambda: re.search(told, job.output))
    assert "rank 0 stopped" not in job.output
    assert states(job.all_stop(0, 1)) == {0: "prompt", 1: "held"}
    job.console("go")
    job.ends()
    assert job.passed("late") == [0, 1]


# --- other ways to stop ---------------------------------------------------------------------------------


def test_the_builtin_breakpoint(job: Job) -> None:
    job.by_hand(2, PLAIN, "builtin", env={"PYTHONBREAKPOINT": "breakranks.breakpoint", "BREAKRANKS_RANKS": "1"})
    assert states(job.all_stop(0, 1)) == {0: "held", 1: "prompt"}
    w, found, *_ = job.console("w", "p found", "go")
    assert texts(w)["1"].endswith("-> breakpoint()  # noqa: T100")
    assert texts(found) == {"1": "8"}
    job.ends()
    assert job.said("TOTAL") == {"0": ["7"], "1": ["8"]}


def test_conditions(job: Job) -> None:
    job.by_hand(2, PLAIN, "conditions")
    assert job.ask("p number, rank()", "c", "p number, rank()", "go") == [{"1": "(2, 1)"}, {"1": "(3, 1)"}]
    job.ends()
    assert job.said("TOTAL") == {"0": ["10"], "1": ["10"]}
    for complaint in ("raised ZeroDivisionError", "this job has no rank 9", "ranks='one' is not a set of ranks"):
        assert job.output.count(complaint) == 2  # of each rank once, however often it comes by


def test_breakpoint_of_mindspeed_lets_the_others_run(job: Job) -> None:
    job.by_hand(3, PLAIN, "runs_on", env={"RANK_TO_DEBUG": "2"})
    (mine,) = job.console("p mine")
    assert texts(mine) == {"2": "102"}
    job.all_pass("runs_on", 0, 1)
    job.console("go")
    job.ends()
    assert job.said("TOTAL") == {"0": ["100"], "1": ["101"], "2": ["102"]}


def test_breakpoint_of_mindspeed_holds_the_others_until_clear(job: Job) -> None:
    job.by_hand(3, PLAIN, "blocks", env={"RANK_TO_DEBUG": "1"})
    assert states(job.all_stop(0, 1, 2)) == {0: "held", 1: "prompt", 2: "held"}
    job.console("p mine", "c")
    job.all_pass("blocks", 1)
    time.sleep(1)
    assert (job.passed("blocks"), job.passed("clears")) == ([1], [])
    job.give_word("clear")
    job.all_pass("clears", 1)
    job.all_pass("blocks", 0, 1, 2)
    job.ends()
    assert job.said("TOTAL") == {"0": ["200"], "1": ["201"], "2": ["202"]}


@pytest.mark.parametrize("way", [(), ("mindspeed",)], ids=["breakpoint", "mindspeed"])
def test_who_holds_for_a_rank_that_is_killed_goes_on(job: Job, way: tuple[str, ...]) -> None:
    ranks = job.by_hand(3, PLAIN, "dies", *way)
    job.all_stop(0, 1, 2)
    assert job.passed("lives") == []
    ranks[0].send_signal(signal.SIGKILL)
    job.all_pass("lives", 1, 2)
    job.ends(-signal.SIGKILL, 0, 0)


def test_a_script_that_leaves_leaves_the_breakpoints_armed(job: Job) -> None:
    job.by_hand(3, PLAIN, "many", "12")
    for number in range(12):
        assert job.ask("p number", "go") == [{"0": str(number)}]
    job.ends()


def test_who_holds_for_a_rank_that_never_comes_goes_on(job: Job) -> None:
    ranks = job.by_hand(3, PLAIN, "late", "0")
    job.all_stop(1, 2)
    ranks[0].send_signal(signal.SIGKILL)
    job.all_pass("late", 1, 2)
    job.ends(-signal.SIGKILL, 0, 0)


def test_a_script_waits_for_the_rank_that_is_to_stop(job: Job) -> None:
    job.by_hand(3, PLAIN, "late", "0")
    job.all_stop(1, 2)
    job.give_word("come")
    mine, *_ = job.console("p mine", "go")
    assert texts(mine) == {"0": "0"}
    job.ends()


def test_a_script_that_says_all_means_all(job: Job) -> None:
    """A rank that comes a second later is waited for, or is said to be missing."""
    job.by_hand(3, PLAIN, "late", "2")
    job.all_stop(0, 1)
    job.give_word("come")
    *notices, mine, table = job.console("all p mine", "ranks")
    missing = any("rank 2" in one["notice"] for one in notices)
    about_to_stop = not table["absent"]  # it has come, and there is nothing to say of it
    assert texts(mine) == {"0": "0", "1": "1", "2": "2"} or missing or about_to_stop
    job.all_stop(0, 1, 2)
    job.console("go")
    job.ends()


# --- elsewhere than in the rank's main thread -----------------------------------------------------------


@pytest.mark.parametrize("where", ["fork", "spawn", "thread"])
def test_a_child_or_a_thread_stops(job: Job, where: str) -> None:
    job.by_hand(2, PLAIN, where)
    w, tagged, ranks = job.console("w", "p tagged", "ranks")
    assert "work()" in texts(w)["0"]
    assert texts(tagged) == {"0": f"'{where} of 0'"}
    (mine,) = [one for one in ranks["ranks"] if one["rank"] == 0]
    assert (mine["helper"], mine["thread"]) == (where != "thread", "loader" if where == "thread" else "MainThread")
    job.console("n", "go")
    job.ends()
    assert job.said("TOTAL") == {"0": ["0"], "1": ["0"]}
    assert "Traceback" not in job.output


# --- crashes --------------------------------------------------------------------------------------------


def test_a_crash_is_kept_and_the_others_hold(job: Job) -> None:
    job.by_hand(3, PLAIN, "dead")
    table = job.all_stop(0, 1, 2)
    assert states(table) == {0: "held", 1: "prompt", 2: "held"}
    assert [one["reason"] for one in table["ranks"] if one["rank"] == 1] == ["crashed: ValueError: bad 42"]
    w, inner, given, up, outer, _ = job.console("w", "p inner", "a", "u", "p others", "p len(str(others))")
    assert texts(w)["1"].endswith("""-> raise ValueError(f"bad {inner}")""")
    assert (texts(inner), texts(given), texts(outer)) == ({"1": "42"}, {"1": "given = 41"}, {"1": "0"})
    assert "-> crash(41)" in texts(up)["1"]
    job.give_word("end")
    time.sleep(1)
    assert job.passed("survived") == []
    job.console("go")
    job.all_pass("survived", 0, 2)
    job.ends(0, 1, 0)
    assert job.output.count("\nValueError: bad 42\n") == 1  # the traceback, as ever


def test_the_others_hold_however_long_a_rank_takes_from_its_crash_to_its_prompt(job: Job) -> None:
    job.by_hand(3, PLAIN, "slowly_dead")
    wait_for("the crash is announced", lambda: "rank 1 crashed: ValueError: bad 42" in job.output)  # to no console yet
    assert states(job.all_stop(0, 1, 2)) == {0: "held", 1: "prompt", 2: "held"}
    job.give_word("end")
    job.console("go")
    job.ends(0, 1, 0)


def test_a_crash_that_was_caught_is_looked_at_and_the_rank_goes_on(job: Job) -> None:
    job.by_hand(2, PLAIN, "caught")
    assert states(job.all_stop(0, 1)) == {0: "held", 1: "prompt"}
    assert job.ask("p inner", "c") == [{"1": "11"}]
    job.give_word("end")
    job.all_pass("survived", 0, 1)
    job.ends()
    assert job.said("TOTAL") == {"0": ["0"], "1": ["51"]}
