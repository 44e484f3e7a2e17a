"""Which tool names the culprit from flight recorder dumps, and how long it takes: breakranks and torchfrtrace.

torchfrtrace is the analyser that comes with torch. Both read the same dumps, each in a new process, in turns:

    torchfrtrace DIR -p nccl_trace_rank_     (with --allow-incomplete-ranks where dumps are absent)
    breakranks why DIR --json

The dumps come from bench/fr_generator.py, which simulates a job and so knows the culprits. The output is two tables in
Markdown: time and memory by size, for jobs in which one rank misses a collective, and the answer to every scenario.
The answers are:

    right          exactly the culprits are named, and no rank if nothing is wrong. The kind that
                   breakranks reports must be right as well
    among others   the culprits and other ranks are named
    wrong          the culprits are not named
    false alarm    nothing is wrong, but a rank is named or a problem reported
    crashed        a traceback or an exit status for an error, instead of an answer

Ranks that torchfrtrace names are those in any of its findings ("missing ranks", "Culprit rank", "missed FR
dumps from ranks"): it gives no verdict. breakranks gives one, and only its ranks count; with two independent
culprits, those of all its findings. torchfrtrace regards the first dump in the order of the folder as right,
so that is never the culprit's, except in the scenarios first_missing and first_op.

Times are wall time including start-up, the best of the rounds. Memory is the peak of the total resident memory of a
process and its descendants, sampled every 20 ms, and at least the maximum that the kernel reports.

    .venv/bin/python bench/flight_recorder.py               everything; 1,024 ranks take a while
    .venv/bin/python bench/flight_recorder.py --quick       a quick check that it works
    .venv/bin/python bench/flight_recorder.py --ranks 64 256 --only times
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

import fr_generator
from fr_generator import MISMATCH, MISSING, PREFIX, SCENARIOS, Truth

BIN = Path(sys.executable).parent
PAGE = os.sysconf("SC_PAGE_SIZE")
SAMPLE = 0.02
RIGHT, AMONG, WRONG, ALARM, CRASHED = "right", "among others", "wrong", "false alarm", "crashed"


@dataclass
class Ran:
    """A command that ran to its end or to the time limit."""

    seconds: float
    peak: int  # bytes
    status: int | None  # None: it took too long
    out: str
    err: str


@dataclass
class Answer:
    grade: str
    named: list[int]
    remark: str = ""


def run(command: list[str], limit: float) -> Ran:
    """Run a command in a session of its own and sample its memory. At the time limit, end it with its descendants."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        began = time.perf_counter()
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True)
        peak, waited = 0, None
        try:
            while True:
                pid, status, usage = os.wait4(child.pid, os.WNOHANG)
                took = time.perf_counter() - began
                if pid:
                    waited = os.waitstatus_to_exitcode(status)
                    peak = max(peak, usage.ru_maxrss * 1024)
                    break
                if took > limit:
                    break
                peak = max(peak, resident(child.pid))
                time.sleep(SAMPLE if took > 1 else SAMPLE / 10)
        finally:
            if waited is None:
                os.killpg(child.pid, signal.SIGKILL)
                os.waitpid(child.pid, 0)
            child.returncode = waited if waited is not None else -signal.SIGKILL
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
        return Ran(took, peak, waited, texts[0], texts[1])


def resident(pid: int) -> int:
    """The resident bytes of a process and its descendants. Shared pages are counted for each."""
    total = 0
    try:
        total = int(Path(f"/proc/{pid}/statm").read_bytes().split()[1]) * PAGE
        for task in os.listdir(f"/proc/{pid}/task"):
            for below in Path(f"/proc/{pid}/task/{task}/children").read_text().split():
                total += resident(int(below))
    except (OSError, IndexError):
        pass  # it has just exited
    return total


# --- The two tools ---


def peer_command(folder: Path, truth: Truth) -> list[str]:
    command = [str(BIN / "torchfrtrace"), str(folder), "-p", PREFIX]
    return [*command, "--allow-incomplete-ranks"] if truth.absent else command


def our_command(folder: Path, truth: Truth) -> list[str]:
    return [str(BIN / "breakranks"), "why", str(folder), "--json"]


def peer_answer(ran: Ran, truth: Truth) -> Answer:
    said = ran.out + ran.err
    named: set[int] = set()
    for pattern in (r"missing ranks: \{([^}]*)\}", r"missed FR dumps from ranks \(\{([^}]*)\}\)"):
        for found in re.findall(pattern, said):
            named |= {int(rank) for rank in found.split(",")}
    named |= {int(rank) for rank in re.findall(r"Culprit rank (\d+)", said)}
    if ran.status != 0:
        last = said.strip().splitlines()[-1:] or [""]
        return Answer(CRASHED, sorted(named), last[0][:80])
    findings = len(re.findall(r"Not all ranks joining|has errors|Input/output mismatch|MISMATCH", said))
    remark = f"{findings} finding{'s' * (findings != 1)}"
    if truth.kind is None:
        return Answer(ALARM if named or findings else RIGHT, sorted(named), remark if findings else "")
    return Answer(grade(named, truth), sorted(named), remark)


def our_answer(ran: Ran, truth: Truth) -> Answer:
    try:
        told: dict[str, Any] = json.loads(ran.out)
        verdict, findings = told["verdict"], told["findings"]
    except (ValueError, KeyError, TypeError):
        last = (ran.err or ran.out).strip().splitlines()[-1:] or [""]
        return Answer(CRASHED, [], last[0][:80])
    if ran.status not in (0, 1):
        return Answer(CRASHED, [], f"status {ran.status}")
    if verdict is None:
        return Answer(WRONG if truth.kind else RIGHT, [], "no verdict" if truth.kind else "")
    named, kind = ranks_of(verdict["culprits"]), verdict["kind"]
    if truth.kind is None:
        return Answer(ALARM, sorted(named), kind)
    if truth.scenario == "two_roots":
        for finding in findings:
            named |= ranks_of(finding["culprits"])
    how = grade(named, truth)
    if how == RIGHT and kind not in truth.kinds:
        return Answer(WRONG, sorted(named), f"the ranks are right, but not {kind}")
    return Answer(how, sorted(named), "" if how == RIGHT else kind)


def grade(named: set[int], truth: Truth) -> str:
    if truth.names(named):
        return RIGHT
    return AMONG if named >= set(truth.culprits) else WRONG


def ranks_of(text: str) -> set[int]:
    """The ranks in a text such as 0-12,14."""
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


Tool = tuple[Callable[[Path, Truth], list[str]], Callable[[Ran, Truth], Answer]]
TOOLS: dict[str, Tool] = {"torchfrtrace": (peer_command, peer_answer), "breakranks": (our_command, our_answer)}


# --- The tables ---


def times_table(args: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Time and memory of both by number of ranks, for one group and for two dimensions of groups."""
    rows = []
    print("| job | ranks | dumps, MiB | tool | best, s | peak, MiB | answer | ranks named |")
    print("|---|--:|--:|---|--:|--:|---|---|", flush=True)
    for ranks in args.ranks:
        for layout, scenario in (("world", "missing"), ("dp_tp", "cascade")):
            with tempfile.TemporaryDirectory(dir=folder) as name:
                dumps = Path(name) / "dumps"
                truth = fr_generator.generate(
                    dumps, ranks=ranks, layout=layout, scenario=scenario, entries=args.entries
                )
                size = sum(path.stat().st_size for path in dumps.iterdir())
                rounds: dict[str, list[Ran]] = {tool: [] for tool in TOOLS}
                for _ in range(args.rounds):
                    for tool, (command, _) in TOOLS.items():
                        if not any(ran.status is None for ran in rounds[tool]):  # one timeout is enough
                            rounds[tool].append(run(command(dumps, truth), args.limit))
            for tool, (_, judge) in TOOLS.items():
                late = any(ran.status is None for ran in rounds[tool])
                best = min(ran.seconds for ran in rounds[tool])
                peak = max(ran.peak for ran in rounds[tool])
                answer = judge(rounds[tool][-1], truth) if not late else Answer("none in time", [])
                time_text = f"> {args.limit:g}" if late else f"{best:.2f}"
                print(
                    f"| {'one group' if layout == 'world' else 'TP×DP'} | {ranks:,} | {size >> 20:,} | {tool} "
                    f"| {time_text} | {peak >> 20:,} | {answer.grade} | {shown(answer)} |",
                    flush=True,
                )
                seconds = [ran.seconds for ran in rounds[tool]]
                rows.append(
                    {"layout": layout, "ranks": ranks, "bytes": size, "tool": tool, "seconds": seconds}
                    | {"peak": peak, "in_time": not late, **asdict(answer)}
                )
    return rows


def scenarios_table(args: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """The answers of both tools to every scenario."""
    jobs: list[tuple[str, Callable[[Path], Truth]]] = []
    for name, scenario in SCENARIOS.items():
        if args.quick and name not in QUICK:
            continue
        layouts = scenario.layouts if name.startswith("healthy") and not args.quick else scenario.layouts[:1]
        for layout in layouts:
            jobs.append((f"{name} ({layout})", generated(args, name, layout)))
    for name in ("healthy", "missing", "cascade", "op", "dead", "order"):
        if not args.quick or name in QUICK:
            jobs.append((f"{name} (gloo)", generated(args, name, None, semantics="gloo")))
    if not args.quick:
        for name in ("order", "p2p_cycle", "pp_stall"):
            jobs.append((f"{name}, hosts wait", generated(args, name, None, semantics="blocking")))
        for name in ("missing", "cascade", "op"):
            jobs.append((f"{name}, rings wrapped", generated(args, name, None, wrap=True)))
    if args.facts:
        jobs += [(f"facts: {name}", from_facts(args, name)) for name in FACTS]

    print("| scenario | culprits | " + " | ".join(f"{tool} | ranks named" for tool in TOOLS) + " |")
    print("|---|---|" + "---|---|" * len(TOOLS), flush=True)
    rows: list[dict[str, Any]] = []
    for title, make in jobs:
        with tempfile.TemporaryDirectory(dir=folder) as name:
            dumps = Path(name) / "dumps"
            truth = make(dumps)
            answers = {}
            for tool, (command, judge) in TOOLS.items():
                ran = run(command(dumps, truth), args.limit)
                answers[tool] = judge(ran, truth) if ran.status is not None else Answer("none in time", [])
        cells = " | ".join(f"{answer.grade} | {shown(answer)}" for answer in answers.values())
        print(f"| {title} | {listed(truth.culprits)} | {cells} |", flush=True)
        rows.append({"title": title, "truth": asdict(truth), "answers": {k: asdict(v) for k, v in answers.items()}})
    right = {tool: sum(row["answers"][tool]["grade"] == RIGHT for row in rows) for tool in TOOLS}
    print("\nright: " + ", ".join(f"{tool} {count} of {len(rows)}" for tool, count in right.items()))
    return rows


QUICK = ("healthy", "healthy_wrapped", "missing", "cascade", "op", "size", "dtype", "p2p_missing", "dead")


def generated(args: argparse.Namespace, scenario: str, layout: str | None, **more: Any) -> Callable[[Path], Truth]:
    def make(dumps: Path, culprit: int | None = None) -> Truth:
        sizes = {"ranks": args.scenario_ranks, "entries": args.scenario_entries}
        return fr_generator.generate(dumps, scenario=scenario, layout=layout, culprit=culprit, **sizes, **more)

    return lambda dumps: placed(make, dumps, first=scenario.startswith("first_"))


def placed(make: Callable[..., Truth], dumps: Path, *, first: bool) -> Truth:
    """Make dumps such that that of the culprit is, or is not, the first in the order of the folder.

    torchfrtrace regards the first dump as right. If that is the culprit's, it blames the others. This is a scenario of
    its own, and must not affect the other scenarios.
    """
    truth = make(dumps)
    for _ in range(truth.ranks):
        listed_first = int(next(os.scandir(dumps)).name.removeprefix(PREFIX))
        if truth.kind is None or (listed_first in truth.culprits) == first:
            break
        shutil.rmtree(dumps)
        truth = make(dumps, listed_first if first else (max(truth.culprits) + 1) % truth.ranks)
    return truth


# The scenarios of an older generator, which is not in the repository, and their culprits.
FACTS: dict[str, str | None] = {
    "ok": None,
    "missing": MISSING,
    "type": MISMATCH,
    "size": MISMATCH,
    "dtype": MISMATCH,
    "wrapped": None,
    "gloo": None,
    "p2p_hang": MISSING,
    "cascade": MISSING,
}


def from_facts(args: argparse.Namespace, scenario: str) -> Callable[[Path], Truth]:
    def make(dumps: Path, culprit: int | None = None) -> Truth:
        ranks = args.scenario_ranks
        culprit = min(13, ranks // 2) if culprit is None else culprit
        command = [sys.executable, args.facts, str(dumps), "--scenario", scenario, "--culprit", str(culprit)]
        command += ["--ranks", str(ranks), "--entries", str(args.scenario_entries)]
        subprocess.run(command, check=True)
        kind = FACTS[scenario]
        truth = Truth(scenario, "facts", "nccl", ranks, kind, [kind] if kind else [])
        if kind:
            # In these the named rank receives, and its neighbour has not sent.
            truth.culprits = [(culprit + 1) % ranks if scenario == "p2p_hang" else culprit]
        return truth

    return lambda dumps: placed(make, dumps, first=False)


def shown(answer: Answer) -> str:
    return "; ".join(filter(None, (listed(answer.named), answer.remark.replace("|", "/"))))


def listed(ranks: list[int]) -> str:
    if len(ranks) > 6:
        return f"{', '.join(map(str, ranks[:4]))}, … ({len(ranks)} ranks)"
    return ", ".join(map(str, ranks))


def versions() -> str:
    from importlib.metadata import version

    packages = ", ".join(f"{name} {version(name)}" for name in ("breakranks", "torch"))
    load = os.getloadavg()[0]
    return f"Python {sys.version.split()[0]}, {packages}; {os.cpu_count()} CPUs, load {load:.1f} before"


def stop(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[64, 256, 1024], metavar="N")
    parser.add_argument("--entries", type=int, default=2000, metavar="N", help="records a rank (2000)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="how often each is timed (3)")
    parser.add_argument("--limit", type=float, default=300, metavar="SECONDS", help="for one command (300)")
    parser.add_argument("--scenario-ranks", type=int, default=64, metavar="N", help="in the second table (64)")
    parser.add_argument("--scenario-entries", type=int, default=400, metavar="N", help="in the second table (400)")
    parser.add_argument("--only", choices=("times", "scenarios"), help="one of the two tables")
    parser.add_argument("--facts", metavar="FILE", help="a gen_fr_dumps.py whose scenarios to add")
    parser.add_argument("--folder", metavar="DIR", help="a folder for temporary dumps (a few hundred MiB)")
    parser.add_argument("--quick", action="store_true", help="small jobs, few scenarios, one round")
    parser.add_argument("--json", metavar="FILE", help="write all figures there")
    args = parser.parse_args()
    if args.quick:
        args.ranks, args.entries, args.rounds, args.scenario_ranks, args.scenario_entries = [16], 200, 1, 16, 200

    signal.signal(signal.SIGTERM, stop)
    about = versions()
    figures: dict[str, Any] = {"about": about, "entries": args.entries, "rounds": args.rounds}
    try:
        with tempfile.TemporaryDirectory(prefix="breakranks-bench-", dir=args.folder) as name:
            print(about, flush=True)
            if args.only != "scenarios":
                print(f"\n{args.entries:,} records a rank; best of {args.rounds}\n")
                figures["times"] = times_table(args, Path(name))
            if args.only != "times":
                print(f"\n{args.scenario_ranks} ranks, {args.scenario_entries} records a rank\n")
                figures["scenarios"] = scenarios_table(args, Path(name))
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return 130
    if args.json:
        Path(args.json).write_text(json.dumps(figures, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
