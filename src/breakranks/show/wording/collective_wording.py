"""Words for ``explain.causes.collective_causes``."""

from __future__ import annotations

from breakranks.explain.causes import collective_causes as c
from breakranks.explain.finding_parts import Subject, Where
from breakranks.rankset import RankSet, short_text
from breakranks.show.quantities import duration, plural
from breakranks.show.wording.grammar import all_of, its, listed, noun, pronoun, verb
from breakranks.show.wording.value_wording import (
    activity,
    call,
    command,
    doing_for,
    group,
    lasted,
    number,
    place,
    ranks,
    wait_place,
    who,
)
from breakranks.show.wording.wording_registry import cause_text, fact_text

_SET_WIDTH = 60
_COMMAND_WIDTH = 200
_APART = {
    "rendezvous": "are at different points of the rendezvous",
    "collectives": "are in different collectives",
    "": "wait in different places",
}
_FSDP_ADVICE = (
    "every forward pass of an FSDP model is a collective: call it on all ranks, or gather a full state dict on all "
    "ranks and use an unsharded copy"
)
_TENSOR_ADVICE = (
    "full_tensor() and redistribute() are collectives: call them on all ranks, and use the result on one rank"
)


def _are(text: str) -> str:
    """``rank 3 is``"""
    return f"{ranks(text)} {verb(number(text), 'are')}"


def _has(text: str) -> str:
    return f"{ranks(text)} {verb(number(text), 'have')}"


def _here(cause: c.NeverCame | c.NotHere) -> str:
    return cause.host or ("any inspected host" if cause.several else "this host")


def _short(text: str) -> str:
    """Return a set of ranks, cut if it is long: ``ranks 0-3,8-11``."""
    found = RankSet.parse(text)
    return f"{noun(len(found), 'rank')} {short_text(found, _SET_WIDTH)}"


def _behind(count: int) -> str:
    return f" ({plural(count, 'call')} behind)" if count else ""


def _from(where: Where | None) -> str:
    return f", in {place(where)}" if where is not None else ""


@cause_text.register
def _(cause: c.NeverCame, subject: Subject) -> str:
    that = "that rank" if subject.count == 1 else "those ranks"
    return f"{ranks(subject.ranks)} never joined: no process on {_here(cause)} has {that}"


@cause_text.register
def _(cause: c.HasGone, subject: Subject) -> str:
    it = pronoun(subject.count, "it", "they")
    exists = f"no longer {verb(subject.count, 'exist')}"
    return f"{ranks(subject.ranks)} {exists}; {it} took part in {call(cause.call)}"


@cause_text.register
def _(cause: c.RankExited, subject: Subject) -> str:
    if not cause.several:
        return f"{_has(subject.ranks)} exited, and the launcher is still running"
    return f"{_has(subject.ranks)} exited" + (f" on {cause.host}" if cause.host else "")


@cause_text.register
def _(cause: c.NotHere, subject: Subject) -> str:
    return f"{_are(subject.ranks)} not on {_here(cause)}"


@cause_text.register
def _(cause: c.NotEntered, subject: Subject) -> str:
    have = verb(subject.count, "have")
    return f"{who(subject)} {have} not {cause.verb} {call(cause.call)}{_behind(cause.behind)}"


@cause_text.register
def _(cause: c.NoDump, subject: Subject) -> str:
    known = f"{verb(subject.count, 'are')} not known to have entered {call(cause.call)}"
    return f"{ranks(subject.ranks)} left no dump and {known}"


@cause_text.register
def _(cause: c.NotTransferred, subject: Subject) -> str:
    here, there = ("recv", "send") if cause.sends else ("send", "recv")
    return f"{_has(subject.ranks)} not called {here} for the {there} of {ranks(cause.waiter)}"


@cause_text.register
def _(cause: c.PeersWait, subject: Subject) -> str:
    text = f"{ranks(subject.ranks)} wait for each other"
    if cause.sides:
        return f"{text}: {listed([fact_text(side) for side in cause.sides])}"
    chain = " → ".join(map(str, cause.ring)) if cause.ring else subject.ranks
    return f"{text} ({chain}): {cause.op} in {place(cause.where)}"


@cause_text.register
def _(cause: c.DifferentPlaces, subject: Subject) -> str:
    sides = [f"{ranks(side.ranks)} in {call(side.call)} ({place(side.where)})" for side in cause.sides]
    return f"the ranks {_APART[cause.of]}: {listed(sides)}"


@cause_text.register
def _(cause: c.AllSeenWait, subject: Subject) -> str:
    where = "on another host" if number(cause.unseen) == 1 else "on other hosts"
    unseen = f"{_are(cause.unseen)} {where} and {verb(number(cause.unseen), 'were')} not inspected"
    everyone = f"{all_of(cause.count)} inspected ranks wait" if cause.count != 1 else "the only inspected rank waits"
    return f"{everyone} in {wait_place(cause.at)}; {unseen}"


@cause_text.register
def _(cause: c.NoneComesOut, subject: Subject) -> str:
    why = "; possible causes: different sizes or groups, a different number of calls, or a network failure"
    if cause.differs is not None:
        why = f"; {fact_text(cause.differs)}"
    doing = f"{activity(cause.doing)}, in {place(cause.doing.where)}"
    if cause.count == 1:
        return f"the only rank is {doing}, and does not return{why}"
    return f"{all_of(cause.count)} ranks are {doing}, and {'neither' if cause.count == 2 else 'none'} returns{why}"


@cause_text.register
def _(cause: c.RingWait, subject: Subject) -> str:
    head = f"{ranks(cause.ranks)} wait for each other"
    if not cause.transfers:
        head += " because they entered their groups in different orders or one of them skipped a call"
    sides = [f"{ranks(side.ranks)} in {call(side.call)}" for side in cause.sides]
    return f"{head}: {listed([*sides, f'{cause.more} more'] if cause.more else sides)}"


@cause_text.register
def _(cause: c.CallsDiffer, subject: Subject) -> str:
    sides = [f"{ranks(side.ranks)} called {_shape(side.shape)}" for side in cause.sides]
    return f"call #{cause.number} of {group(cause.group)} differs between its members: {listed(sides)}"


@cause_text.register
def _(cause: c.RootsDiffer, subject: Subject) -> str:
    sides = listed([f"{ranks(side.ranks)} with root {side.root}" for side in cause.sides])
    return f"{call(cause.call)} was called with different roots: {sides}"


@cause_text.register
def _(cause: c.CallStalled, subject: Subject) -> str:
    everyone = f"{ranks(cause.only)}, its only member," if cause.only else f"{all_of(cause.members)} members"
    count = 1 if cause.only else cause.members
    if cause.inside:
        text = f"{everyone} {verb(count, 'have')} entered {call(cause.call)}, and {_has(cause.inside)} not returned"
    else:
        everyone = f"{everyone} {verb(count, 'are')}"
        text = f"{everyone} in {call(cause.call)}, which has not completed"
    return f"{text}: no rank is missing, so check the network and the work that precedes the call on the GPUs"


@cause_text.register
def _(cause: c.LoneGather, subject: Subject) -> str:
    others = listed([f"{_are(side.ranks)} in {call(side.call)}" for side in cause.others])
    return f"{_gather(cause.gather)} (#{cause.number} of {group(cause.group)}) needs every rank, and {others}"


@cause_text.register
def _(cause: c.LauncherWaits, subject: Subject) -> str:
    peer = f"; it cannot reach {cause.peer}" if cause.peer else ""
    name = f"{cause.launcher} (pid {cause.pid})"
    return f"{name} waits for the other hosts to join and has not started any rank yet{peer}"


@cause_text.register
def _(cause: c.RanksMove, subject: Subject) -> str:
    if cause.seen == 1:
        return "the only rank is making progress"
    many = all_of(cause.seen) if cause.moving == cause.seen else f"{cause.moving:,} of {cause.seen:,}"
    return f"{many} ranks {verb(cause.moving, 'are')} making progress"


def last_call(last: c.LastCall, count: int) -> str:
    """Return a sentence about the last known call of a rank, which is one of ``count``."""
    if last.call is None:
        return f"{'It' if count == 1 else f'Rank {last.rank}'} has no recorded call"
    whose = "Its last call" if count == 1 else f"The last call of rank {last.rank}"
    return f"{whose} was {call(last.call)}" + (f", from {place(last.where)}" if last.where is not None else "")


def _shape(shape: c.Shape) -> str:
    parts = [shape.operation]
    parts += [f"of {shape.inputs}"] if shape.inputs else []
    parts += [f"into {shape.outputs}"] if shape.outputs else []
    parts += [f"in {shape.types}"] if shape.types else []
    return " ".join(parts)


def _gather(gather: c.Gather) -> str:
    """``rank 0 (pid 4242) alone runs an FSDP model, in validate, train.py:50: the all_gather of its parameters``"""
    count = gather.subject.count
    if gather.fsdp:
        what = f"alone {verb(count, 'run')} an FSDP model"
        text = f"the all_gather of {f'the parameters of {gather.module}' if gather.module else 'its parameters'}"
    else:
        what, text = f"alone {verb(count, 'gather')} a sharded tensor", f"{its(count)} all_gather"
    return f"{who(gather.subject)} {what}, in {place(gather.where)}: {text}"


def span(counter: c.CounterSpan, between: str = " to ", equals: str = "=") -> str:
    """``step=117`` or ``step=117 to 119``"""
    values = f"{counter.low}" if counter.low == counter.high else f"{counter.low}{between}{counter.high}"
    return f"{counter.name}{equals}{values}" + (f" in {counter.function}" if counter.function else "")


@fact_text.register
def _(fact: c.MissingDetail) -> str:
    return fact.text


@fact_text.register
def _(fact: c.RanksWait) -> str:
    what = f"in {call(fact.call)}" if fact.call is not None else activity(fact.doing)
    text = f"{_are(fact.ranks)} {what}, in {place(fact.doing.where)}"
    text += lasted(fact.stands)
    if fact.unknown:
        return f"{text}; it is not known whether {_has(fact.unknown)} entered it"
    if fact.absent:
        return f"{text}, which {_has(fact.absent)} " + ("queued behind another call" if fact.behind else "not entered")
    return text


@fact_text.register
def _(fact: c.OwnTimeout) -> str:
    return f"the operation times out in {duration(fact.seconds)}"


@fact_text.register
def _(fact: c.RanksAt) -> str:
    if fact.doing.word == "unknown":
        return f"the {noun(number(fact.ranks), 'stack')} of {ranks(fact.ranks)} could not be read"
    return f"{_are(fact.ranks)} in {place(fact.doing.where)}, {doing_for(fact.doing)}"


@fact_text.register
def _(fact: c.RanksAtLine) -> str:
    return f"{_are(fact.ranks)} at {place(fact.where)}"


@fact_text.register
def _(fact: c.AllOnHost) -> str:
    return f"{ranks(fact.ranks)} are all on host {fact.host}"


@fact_text.register
def _(fact: c.WholeGroup) -> str:
    return f"{ranks(fact.ranks)} are exactly the members of {group(fact.group)}"


@fact_text.register
def _(fact: c.CounterDiffers) -> str:
    return f"{fact.name} is {listed([f'{value} on {ranks(some)}' for value, some in fact.values])}"


@fact_text.register
def _(fact: c.RanksBehind) -> str:
    others = "the other" if fact.others == 1 else "the others"
    return f"{_are(fact.ranks)} at {span(fact.span)}, {others} at {span(fact.others_span)}"


@fact_text.register
def _(fact: c.RanksAtSteps) -> str:
    spans = ", ".join(map(span, fact.spans))
    return f"{_are(fact.ranks)} at {spans}" if fact.ranks else f"all are at {spans}"


@fact_text.register
def _(fact: c.InTransfer) -> str:
    peer = "" if fact.peer is None else f" {'from' if 'recv' in fact.op else 'to'} rank {fact.peer}"
    return f"rank {fact.rank} in {fact.op}{peer} ({place(fact.where)})"


@fact_text.register
def _(fact: c.CodeDecides) -> str:
    return "which side is wrong depends on the code: the smaller side is not necessarily the wrong one"


@fact_text.register
def _(fact: c.SideWaits) -> str:
    text = f"{_are(fact.ranks)} in {call(fact.call)}{_from(fact.where)}"
    if not fact.others:
        return f"{text}, and no other member of the group is known to have made a call"
    text += f", and {verb(number(fact.ranks), 'wait')} for {ranks(fact.others)}"
    if fact.call.peer is not None:
        return text
    have = verb(number(fact.others), "have")
    return f"{text}, which {have} " + ("queued it behind another call" if fact.behind else "not entered it")


@fact_text.register
def _(fact: c.SideShape) -> str:
    return f"{ranks(fact.ranks)}: {_shape(fact.shape)}{_from(fact.where)}"


@fact_text.register
def _(fact: c.FromArguments) -> str:
    return "the roots were read from the arguments of the calls"


@fact_text.register
def _(fact: c.WaitStep) -> str:
    return f"{_short(fact.ranks)} {verb(number(fact.ranks), 'wait')} in {call(fact.call)} for {_short(fact.others)}"


@fact_text.register
def _(fact: c.MoreWait) -> str:
    return f"and {plural(fact.ranks, 'more rank')} {verb(fact.ranks, 'wait')} for them"


@fact_text.register
def _(fact: c.CallProgress) -> str:
    if fact.reached is None:
        return f"rank {fact.rank} has recorded no call of {group(fact.group)}"
    return (
        f"rank {fact.rank} has reached #{fact.reached} of {group(fact.group)} and completed #{fact.completed}; "
        f"the others are in #{fact.others}"
    )


@fact_text.register
def _(fact: c.GatherNeedsAll) -> str:
    return f"{_gather(fact.gather)} needs every rank"


@fact_text.register
def _(fact: c.GatherAdvice) -> str:
    return _FSDP_ADVICE if fact.fsdp else _TENSOR_ADVICE


@fact_text.register
def _(fact: c.LauncherIn) -> str:
    return f"its stack has been in {fact.op} for {duration(fact.seconds)}"


@fact_text.register
def _(fact: c.LauncherCommand) -> str:
    return f"its command: {command(fact.command, _COMMAND_WIDTH)}"


@fact_text.register
def _(fact: c.Connecting) -> str:
    return f"connecting to {fact.peer}, no answer yet"
