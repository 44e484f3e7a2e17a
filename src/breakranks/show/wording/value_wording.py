"""Texts for places, ranks, activities and calls within a sentence."""

from __future__ import annotations

from msgspec.structs import replace

from breakranks.explain.finding_parts import CallName, Doing, GroupName, HeldUp, Subject, WaitPlace, Where
from breakranks.rankset import RankSet, ranks_text
from breakranks.show.quantities import duration, plural
from breakranks.show.wording.grammar import pronoun, verb
from breakranks.snapshot.host_names import fold

# What a thread does, by the activities of ``explain.frame_meanings``.
PHRASES = {
    "collective": "in",
    "p2p": "in",
    "rendezvous": "waiting for all ranks to join",
    "store": "waiting for a key in the store",
    "gpu-wait": "waiting for the GPU",
    "prompt": "at a debugger prompt",
    "held": "held by breakranks for a rank at a prompt",
    "file-lock": "waiting for a lock file",
    "data-loading": "waiting for data",
    "helper-wait": "waiting for a helper process",
    "subprocess": "waiting for a subprocess",
    "compile": "compiling",
    "thread-wait": "waiting for a thread or lock",
    "gil-wait": "waiting for the GIL",
    "socket": "waiting for a socket",
    "io": "in file I/O",
    "checkpoint": "in checkpoint I/O",
    "sleep": "sleeping",
    "gc": "collecting garbage",
    "import": "importing",
    "event-loop": "idle in an event loop",
    "idle": "idle, waiting for work",
    "exit": "at the end of its program",
    "compute": "computing",
    "unknown": "in an unknown state",
}
# These are incomplete without the operation.
_INCOMPLETE = frozenset({"collective", "p2p"})
# The operation adds nothing to these.
_COMPLETE = frozenset({"held", "gil-wait", "sleep", "gc", "import", "event-loop", "idle", "exit", "compute", "unknown"})
# Shorter waits are not mentioned.
_MENTIONED_SECONDS = 1.0


def base(path: str) -> str:
    return path.rsplit("/", 1)[-1]


def place(where: Where | None) -> str:
    """``load_batch, data.py:88``"""
    if where is None:
        return "unknown code"
    return f"{where.function}, {base(where.file)}:{where.line}"


def ranks(text: str) -> str:
    """Return ``rank 3`` or ``ranks 0-2`` for a folded set."""
    return ranks_text(RankSet.parse(text))


def number(text: str) -> int:
    """Return the size of a folded set."""
    return len(RankSet.parse(text))


def who(subject: Subject) -> str:
    """Return ``rank 13 (node-5, pid 4242)``, with the host only if the job has several."""
    if subject.count != 1:
        if subject.whole_host:
            return f"all ranks of {subject.hosts[0]} ({subject.ranks})"
        return f"ranks {subject.ranks} ({fold(subject.hosts)})" if subject.hosts else f"ranks {subject.ranks}"
    if not subject.pid:
        return f"rank {subject.ranks}"
    return f"rank {subject.ranks} ({f'{subject.host}, ' if subject.host else ''}pid {subject.pid})"


def activity(doing: Doing) -> str:
    """Return ``in all_reduce`` or ``waiting for a lock file (FileBaton)``."""
    text = PHRASES.get(doing.word, doing.word)
    if doing.word in _INCOMPLETE:
        text = f"{text} {doing.op or 'it'}"
    elif doing.op and doing.word not in _COMPLETE:
        text = f"{text} ({doing.op})"
    if doing.about and doing.word in ("io", "socket"):
        text = f"{doing.verb if doing.word == 'io' else 'waiting for'} {opened(doing.about, doing.peer)}"
    return f"{text}, {doing.context}" if doing.context and doing.word != "compile" else text


def opened(about: str, peer: str) -> str:
    """Return ``a pipe, whose other end process 7 (cat) has``."""
    return f"{about}, whose other end {peer} has" if peer else about


def doing_for(doing: Doing) -> str:
    """Return the activity with how long it has lasted or will last."""
    if doing.word == "sleep" and doing.left is not None:
        left = duration(doing.left)
        return f"sleeping for another {left}" if doing.left > _MENTIONED_SECONDS else "sleeping for short intervals"
    if doing.word == "unknown":
        return "its stack could not be read"
    return activity(doing) + lasted(doing.stands)


def lasted(seconds: float) -> str:
    """`` (for 12 s)``"""
    return f" (for {duration(seconds)})" if seconds >= _MENTIONED_SECONDS else ""


def group(name: GroupName) -> str:
    """Return ``mesh_tp (0-7)``: the description, with the members if several groups have it."""
    if name.kind == "world":
        return "the world group"
    if name.kind == "ranks":
        return f"the group of {name.name}"
    text = f"group {name.name}" if name.kind == "numbered" else name.name
    return f"{text} ({name.members})" if name.members else text


def call(name: CallName) -> str:
    """``all_reduce #239 of mesh_tp (0-7)`` or ``recv from rank 3``"""
    if name.peer is not None:
        return f"{'send to' if name.sends else 'recv from'} rank {name.peer}"
    count = "" if name.number is None else f" #{name.number}"
    if name.group is None:
        return f"{name.operation}{count}"
    groups = f"{name.groups} groups " if name.groups > 1 else ""
    return f"{name.operation}{count} of {groups}{group(name.group)}"


def wait_place(at: WaitPlace) -> str:
    """``all_reduce #239 of mesh_tp, in step, train.py:120``"""
    text = call(at.call)
    if at.where is not None:
        text += f", in {place(at.where)}"
    return f"{text}; the others in other calls" if at.others_elsewhere else text


def held_up(waiting: HeldUp, culprits: int) -> str:
    """``ranks 0-3 wait for it, 2 of them through 1 other group, others in barrier``"""
    many = number(waiting.ranks)
    names = f"{many} ranks" if waiting.most is not None and many > waiting.most else ranks(waiting.ranks)
    text = f"{names} {verb(many, 'wait')}"
    if not waiting.mutual:
        text += f" for {pronoun(culprits)}"
    if waiting.through:
        others = "others" if waiting.groups is None else plural(waiting.groups, "other group")
        text += f", {waiting.through} of them through {others}"
    if waiting.at is None:
        return text
    if waiting.through:
        return f"{text}, others in {wait_place(replace(waiting.at, others_elsewhere=False))}"
    return f"{text} in {wait_place(waiting.at)}"


def command(text: str, most: int = 80) -> str:
    """Return a command line, cut if it is long."""
    return text if len(text) <= most else text[: most - 1] + "…"


def predicate(subject: Subject, plain: str, rest: str) -> str:
    """Return ``rank 3 (pid 7) waits for it``: a subject, its verb and the rest of a sentence."""
    return f"{who(subject)} {verb(subject.count, plain)} {rest}"
