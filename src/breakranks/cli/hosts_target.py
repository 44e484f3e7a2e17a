"""Hosts other than this one: reach those of a target, find the job that a command is about, and say who is late."""

from __future__ import annotations

import argparse
import secrets
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial

from breakranks.cli.progress_line import ProgressLine
from breakranks.cli.target_args import reach_words
from breakranks.cli.terminal_output import look, show
from breakranks.errors import NoJobError
from breakranks.hosts import hosts_sampler
from breakranks.hosts.bootstrap.bundle import supply
from breakranks.hosts.bootstrap.shell_command import remote_command
from breakranks.hosts.controller import HostController
from breakranks.hosts.transports import TransportOptions, plan
from breakranks.jobs.found_jobs import LocalJobs
from breakranks.jobs.merge_jobs import ClusterJob, problems
from breakranks.jobs.targets import Hosts, select_of
from breakranks.observe.process_table import redact
from breakranks.snapshot.host_names import fold
from breakranks.snapshot.model import Problem

_SOON_SECONDS = 1.0  # seconds until progress is said
_GRACE_SECONDS = 1.5  # seconds in which a host may be later than most, before the others are shown without it


class HostsTarget:
    """The hosts of one target, from the first word to the last. ``found`` is what each has, by its plain name."""

    def __init__(self, target: Hosts, args: argparse.Namespace) -> None:
        self._args = args
        nonce = secrets.token_hex(8)
        options = TransportOptions(
            ssh_config=args.ssh_config,
            ssh_options=args.ssh_options,
            python=args.python,
            setup=args.setup,
            sudo=bool(args.sudo),
            deadline=args.deadline,
        )

        def remote(piece: int) -> tuple[str, ...]:
            return remote_command(nonce, piece=piece, python=args.python, setup=args.setup, sudo=bool(args.sudo))

        # C frames need pystack, the largest part of what may have to travel; few commands read them.
        native = getattr(args, "native", False) or not getattr(args, "no_native", True)
        tools = ("py-spy", "pystack") if native else ("py-spy",)
        made = plan(target, options, remote)
        self.controller = HostController(
            made, nonce=nonce, deadline=args.deadline, fanout=options.fanout, supply=partial(supply, tools=tools)
        )
        # It goes into snapshots and `next` lines: a token in a template or a set-up must not.
        self.controller.typed = shlex.join(redact([args.target, *reach_words(args)]))
        self.found: dict[str, LocalJobs] = {}
        self._began = time.monotonic()
        self._say = ProgressLine()
        self._said = False
        self.controller.waits_for = self._waits_for
        self.controller.__enter__()

    def close(self) -> None:
        self._say.done()
        self.controller.close()

    def meet(self, *, patient: bool) -> list[str]:
        """Wait for hosts, and ask those that have come which jobs they have. The hosts that are new.

        ``patient``: until all have come or are lost; else not for a few that are much later than the others.
        """
        controller = self.controller
        while controller.waiting and not (not patient and self._late()):
            controller.wait(lambda: not controller.waiting, 0.1)
            self._progress()
        new = [name for name in controller.up if hosts_sampler.plain(name) not in self.found]
        if new:
            hosts_sampler.find(controller, new, self.found)
        self._say.done()
        return new

    def _late(self) -> bool:
        """Whether those who are still to come are so late that the others need not wait."""
        return bool(self.controller.up) and time.monotonic() - max(self._began, self.controller.newest) > _GRACE_SECONDS

    def _progress(self) -> None:
        if self.controller.waiting and time.monotonic() - self._began > _SOON_SECONDS:
            self._waits_for(self.controller.waiting)

    def _waits_for(self, names: Sequence[str]) -> None:
        """One line on a terminal, replaced as things go on; elsewhere it is said once."""
        if not names:
            self._say.done()
            return
        total = len(self.controller.host_states)
        text = (
            f"{total - len(names)} of {total} hosts have answered; waiting for {fold(map(hosts_sampler.plain, names))}"
        )
        if sys.stderr.isatty():
            self._say(text)
        elif not self._said:
            self._said = True
            sys.stderr.write(f"breakranks: {text}\n")

    def jobs(self) -> tuple[ClusterJob, ...]:
        return hosts_sampler.jobs_of(self.controller, self.found)

    def problems(self) -> tuple[Problem, ...]:
        return problems(self.found)

    def job(self, key: str | None) -> ClusterJob:
        """The one that a command is about."""
        if not self.found:
            raise hosts_sampler.nothing_seen(self.controller)
        jobs = self.jobs()
        where = f"on the hosts of {self.controller.plan.name}"
        if not jobs:
            lost = "".join(f"\n{hosts}: {lost.what}" for hosts, lost in hosts_sampler.reasons(self.controller))
            raise NoJobError(
                f"no job {where}{lost}", f"See how far each host goes: breakranks hosts {self.controller.plan.name}"
            )
        return select_of(jobs, key, where)

    def rounds(self, key: str | None, *, patient: bool) -> Iterator[ClusterJob]:
        """The job as soon as most of its hosts have answered; and once more, if others did until the deadline."""
        self.meet(patient=patient)
        if not self.found:
            self.meet(patient=True)
        late = [name for name, one in self.controller.host_states.items() if one.lost is None and not one.told]
        try:
            job = self.job(key)
        except NoJobError:
            if not late:
                raise
            late = []
            self.meet(patient=True)  # it may be on those that are late
            job = self.job(key)
        yield job
        if not late:
            return
        names = fold(map(hosts_sampler.plain, late))
        sys.stdout.flush()
        if self.controller.waiting:
            sys.stderr.write(f"breakranks: waiting for {names}; Ctrl-C leaves it at that\n")
        if self.meet(patient=True):
            print(f"\n{names} has answered since; with it:\n")
            yield self.job(key)
        else:
            self.say_lost()

    def say_lost(self) -> None:
        """Hosts of which it was said that they may come, and did not."""
        how = look(self._args)
        for hosts, lost in hosts_sampler.reasons(self.controller):
            show([[(hosts, "rank"), f": {lost.what}"], *(["  ", line] for line in lost.remedy.splitlines())], how)
