"""Words for ``explain.causes.collective_causes``."""

from __future__ import annotations

from breakranks.explain.causes import collective_causes as c
from breakranks.explain.values import Subject, Where
from breakranks.rankset import RankSet, short_text
from breakranks.show.quantities import duration, plural
from breakranks.show.wording.grammar import listed, pronoun, verb
from breakranks.show.wording.registry import cause_text, fact_text
from breakranks.show.wording.value_wording import (
    activity,
    call,
    command,
    doing_for,
    group,
    number,
    place,
    ranks,
    stood,
    wait_place,
    who,
)

_SET_WIDTH = 60
_COMMAND_WIDTH = 200
_APART = {
    "rendezvous": "are at different places of the rendezvous",
    "collectives": "are in different collectives",
    "": "wait in different places",
}
_FSDP_ADVICE = (
    "every forward of an FSDP model is a collective: call it on all ranks, or gather a full state dict on all and use "
    "a copy that is not sharded"
)
_TENSOR_ADVICE = "full_tensor() and redistribute() are collectives: call them on all ranks, and use the result on one"


def _are(text: str) -> str:
    """``rank 3 is``"""
    return f"{ranks(text)} {verb(number(text), 'are')}"


def _has(text: str) -> str:
    return f"{ranks(text)} {verb(number(text), 'have')}"


def _here(cause: c.NeverCame | c.NotHere) -> str:
    return cause.host or ("any host that was looked at" if cause.several else "this host")


def _short(text: str) -> str:
    """A set of ranks that may be long: ``ranks 0-3,8-11``, cut."""
    found = RankSet.parse(text)
    return f"rank{'' if len(found) == 1 else 's'} {short_text(found, _SET_WIDTH)}"


def _behind(count: int) -> str:
    return f" ({count} behind)" if count else ""


def _from(where: Where | None) -> str:
    return f", {place(where)}" if where is not None else ""


@cause_text.register
def _(cause: c.NeverCame, subject: Subject) -> str:
    that = "that rank" if subject.count == 1 else "those ranks"
    return f"{ranks(subject.ranks)} never came: no process on {_here(cause)} has {that}"


@cause_text.register
def _(cause: c.HasGone, subject: Subject) -> str:
    it = pronoun(subject.count, "it", "they")
    here = verb(subject.count, "are")
    return f"{_has(subject.ranks)} gone: {it} took part in {call(cause.call)} and {here} not here"


@cause_text.register
def _(cause: c.RankExited, subject: Subject) -> str:
    if not cause.several:
        return f"{_has(subject.ranks)} exited, and the launcher is still here"
    return f"{_has(subject.ranks)} exited" + (f", on {cause.host}" if cause.host else "")


@cause_text.register
def _(cause: c.NotHere, subject: Subject) -> str:
    return f"{_are(subject.ranks)} not on {_here(cause)}"


@cause_text.register
def _(cause: c.NotEntered, subject: Subject) -> str:
    have = verb(subject.count, "have")
    return f"{who(subject)} {have} not {cause.verb} {call(cause.call)}{_behind(cause.behind)}"


@cause_text.register
def _(cause: c.NoDump, subject: Subject) -> str:
    return f"{ranks(subject.ranks)} left no dump, and {verb(subject.count, 'have')} not been seen in {call(cause.call)}"


@cause_text.register
def _(cause: c.NotTransferred, subject: Subject) -> str:
    waiter = ranks(cause.waiter)
    if cause.sends:
        return f"{_has(subject.ranks)} not received what {waiter} {verb(number(cause.waiter), 'send')} it"
    return f"{_has(subject.ranks)} not sent what {waiter} {verb(number(cause.waiter), 'wait')} for in recv"


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
    unseen = f"{_are(cause.unseen)} on other hosts and could not be seen"
    everyone = f"all {cause.count:,} ranks here wait" if cause.count != 1 else "the only rank here waits"
    return f"{everyone} in {wait_place(cause.at)}; {unseen}"


@cause_text.register
def _(cause: c.NoneComesOut, subject: Subject) -> str:
    why = ": sizes, groups or the number of calls differ, or the network is cut"
    if cause.differs is not None:
        why = f"; {fact_text(cause.differs)}"
    doing = f"{activity(cause.doing)} in {place(cause.doing.where)}"
    everyone = f"all {cause.count:,} ranks are" if cause.count != 1 else "the only rank is"
    return f"{everyone} {doing} and none comes out{why}"


@cause_text.register
def _(cause: c.RingWait, subject: Subject) -> str:
    head = f"{ranks(cause.ranks)} wait for each other"
    if not cause.transfers:
        head += ", for they entered their groups in different orders or one left a call out"
    sides = listed([f"{ranks(side.ranks)} in {call(side.call)}" for side in cause.sides])
    return f"{head}: {sides}" + (f" and {cause.more} more" if cause.more else "")


@cause_text.register
def _(cause: c.CallsDiffer, subject: Subject) -> str:
    sides = [f"{ranks(side.ranks)} called {_shape(side.shape)}" for side in cause.sides]
    return f"call #{cause.number} of {group(cause.group)} is not the same on all its members: {listed(sides)}"


@cause_text.register
def _(cause: c.RootsDiffer, subject: Subject) -> str:
    sides = listed([f"{ranks(side.ranks)} with root {side.root}" for side in cause.sides])
    return f"{call(cause.call)} has not the same root on all its members: {sides}"


@cause_text.register
def _(cause: c.CallStalled, subject: Subject) -> str:
    everyone = f"{ranks(cause.only)}, its only member," if cause.only else f"all {cause.members} members"
    count = 1 if cause.only else cause.members
    if cause.inside:
        text = f"{everyone} {verb(count, 'have')} entered {call(cause.call)}, and {_has(cause.inside)} not come out"
    else:
        everyone = f"{everyone} {verb(count, 'are')}"
        text = f"{everyone} in {call(cause.call)} and it has not completed"
    return f"{text}: no rank is missing from it, so look at the network, or at what runs before it on the GPUs"


@cause_text.register
def _(cause: c.LoneGather, subject: Subject) -> str:
    others = listed([f"{_are(side.ranks)} in {call(side.call)}" for side in cause.others])
    return f"{_gather(cause.gather)} (#{cause.number} of {group(cause.group)}) needs every rank, and {others}"


@cause_text.register
def _(cause: c.LauncherWaits, subject: Subject) -> str:
    peer = f"; it cannot reach {cause.peer}" if cause.peer else ""
    name = f"{cause.launcher} (pid {cause.pid})"
    return f"{name} waits for the other hosts to join, and has started no rank yet{peer}"


@cause_text.register
def _(cause: c.RanksMove, subject: Subject) -> str:
    if cause.seen == 1:
        return "the only rank moves; nothing stands in its way"
    many = "all" if cause.moving == cause.seen else str(cause.moving)
    return f"{many} of {cause.seen} ranks {verb(cause.moving, 'move')}; nothing stands in their way"


def last_call(last: c.LastCall, count: int) -> str:
    """A sentence on where a rank was when it was last heard of: the only one of ``count``, or one of them."""
    if last.call is None:
        return f"{'It' if count == 1 else f'Rank {last.rank}'} has made no call that is recorded"
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
        what, text = f"alone {verb(count, 'gather')} a sharded tensor", "its all_gather"
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
    if fact.unknown:
        text += f"; whether {_has(fact.unknown)} entered it is not known"
    elif fact.absent:
        how = "are" if fact.behind else "have"
        text += f", which {ranks(fact.absent)} {verb(number(fact.absent), how)} "
        text += "behind with" if fact.behind else "not entered"
    return text + stood(fact.stands)


@fact_text.register
def _(fact: c.OwnTimeout) -> str:
    return f"the operation's own timeout ends it in {duration(fact.seconds)}"


@fact_text.register
def _(fact: c.RanksAt) -> str:
    return f"{_are(fact.ranks)} in {place(fact.doing.where)}, {doing_for(fact.doing)}"


@fact_text.register
def _(fact: c.RanksAtLine) -> str:
    return f"{_are(fact.ranks)} at {place(fact.where)}"


@fact_text.register
def _(fact: c.AllOnHost) -> str:
    return f"{ranks(fact.ranks)} are all on host {fact.host}"


@fact_text.register
def _(fact: c.WholeGroup) -> str:
    return f"{ranks(fact.ranks)} are the whole of {group(fact.group)}"


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
    peer = "" if fact.peer is None else f" {'from' if 'recv' in fact.op else 'to'} {fact.peer}"
    return f"rank {fact.rank} in {fact.op}{peer} ({place(fact.where)})"


@fact_text.register
def _(fact: c.CodeDecides) -> str:
    return "which side is wrong the code decides: fewer ranks are not proof"


@fact_text.register
def _(fact: c.SideWaits) -> str:
    text = f"{_are(fact.ranks)} in {call(fact.call)}{_from(fact.where)}, "
    if not fact.others:
        return f"{text}in which no other member is known to have called anything"
    text += f"{verb(number(fact.ranks), 'wait')} for {ranks(fact.others)}"
    if fact.call.peer is not None:
        return text
    have = verb(number(fact.others), "have")
    return f"{text}, which {have} " + ("it behind another call" if fact.behind else "not entered it")


@fact_text.register
def _(fact: c.SideShape) -> str:
    return f"{ranks(fact.ranks)}: {_shape(fact.shape)}{_from(fact.where)}"


@fact_text.register
def _(fact: c.FromArguments) -> str:
    return "the roots are read from the calls' own arguments"


@fact_text.register
def _(fact: c.WaitStep) -> str:
    return f"{_short(fact.ranks)} {verb(number(fact.ranks), 'wait')} in {call(fact.call)} for {_short(fact.others)}"


@fact_text.register
def _(fact: c.MoreWait) -> str:
    return f"and {plural(fact.ranks, 'more rank')} {verb(fact.ranks, 'wait')} for those"


@fact_text.register
def _(fact: c.CallProgress) -> str:
    if fact.reached is None:
        return f"rank {fact.rank} has recorded no call of {group(fact.group)}"
    return (
        f"rank {fact.rank} has come to #{fact.reached} of {group(fact.group)}, completed #{fact.completed}; "
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
    return f"its stack is in {fact.op}, for {duration(fact.seconds)}"


@fact_text.register
def _(fact: c.LauncherCommand) -> str:
    return f"its command: {command(fact.command, _COMMAND_WIDTH)}"


@fact_text.register
def _(fact: c.Connecting) -> str:
    return f"connecting to {fact.peer}, no answer yet"
