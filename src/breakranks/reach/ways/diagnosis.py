"""Why a host was not reached: what ssh, srun, mpirun and others say, as a cause and a remedy.

The messages are those of OpenSSH 9.2, Slurm 22.05, Open MPI 4.1, docker 28, podman 4.3 and kubectl 1.32.
The table is read from above, and the first row that fits is the answer: what ssh says comes before what the
program says that ran it. ``(?P<it>…)`` in a pattern is ``{it}`` in the texts.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from breakranks.reach.ways.model import Lost

_BY_HAND = "Try it by hand: ssh -oBatchMode=yes {login} true"
_KEY = "Load your key (ssh-add), or name User and IdentityFile in ~/.ssh/config, or --ssh-options '-i KEY'. " + _BY_HAND
_SEE_JOB = "See: squeue --me"


class Row(NamedTuple):
    pattern: str
    kind: str
    what: str
    remedy: str
    schemes: tuple[str, ...] = ()  # none: whatever the way is


ROWS = (
    # --- ssh, whoever started it
    Row(
        r"Could not resolve hostname (?P<it>\S+): ",
        "unreachable",
        "the name {it} is not known",
        "Check its spelling, or give it an address: HostName in ~/.ssh/config (or --ssh-config FILE)",
    ),
    Row(
        r"REMOTE HOST IDENTIFICATION HAS CHANGED",
        "refused",
        "its host key is not the one that is known: reinstalled, or somebody else answers",
        "If it was reinstalled, forget the old key: ssh-keygen -R {bare}",
    ),
    Row(
        r"Host key verification failed",
        "refused",
        "its host key is not known here",
        "Log in once by hand (ssh {login}) and accept it, or --ssh-options -oStrictHostKeyChecking=accept-new",
    ),
    Row(
        r"Permissions 0\d+ for '(?P<it>[^']+)' are too open(?s:.*)Permission denied \(",
        "refused",
        "ssh does not use the key {it}, which others may read",
        "chmod 600 {it}",
    ),
    Row(
        r"(?i:access denied).{0,80}(?:no active jobs|not have any active|pam_slurm)",
        "refused",
        "it lets in only who has a Slurm job there",
        "Reach it through the job: slurm:JOBID",
    ),
    Row(
        r"Permission denied \((?P<it>[a-z,-]+)",
        "refused",
        "it refuses the login ({it})",
        _KEY,
    ),
    Row(r"Permission denied, please try again", "refused", "it refuses the login", _KEY),
    Row(
        r"Too many authentication failures",
        "refused",
        "ssh offered more keys than it takes",
        "Name the one to use: IdentityFile and IdentitiesOnly yes in ~/.ssh/config",
    ),
    Row(
        r"connect to host (?P<it>\S+ port \d+): Connection refused",
        "refused",
        "nothing listens on {it}",
        "Is sshd running there? Another port: --ssh-options '-p PORT'",
    ),
    Row(
        r"connect to host (?P<it>\S+ port \d+): Connection timed out",
        "unreachable",
        "no answer from {it}",
        "Is it up, and is it reached from here? Through another host: ProxyJump in ~/.ssh/config",
    ),
    Row(
        r"connect to host (?P<it>\S+) port \d+: (?:No route to host|Network is unreachable|Host is down)",
        "unreachable",
        "there is no way to {it}",
        "Is it up, and is it reached from here? Through another host: ProxyJump in ~/.ssh/config",
    ),
    Row(
        r"timed out during banner exchange|Connection to \S+ port \d+ timed out",
        "timed-out",
        "it takes the connection, but its sshd says nothing: hung or overloaded, or a jump host is",
        _BY_HAND,
    ),
    Row(
        r"Timeout, server \S+ not responding|client_loop: send disconnect|Connection reset by \S+ port",
        "unreachable",
        "it stopped answering in mid-session",
        "Has it crashed, or was its network cut? " + _BY_HAND,
    ),
    Row(
        r"(?:kex|ssh)_exchange_identification|Connection closed by \S+ port|banner exchange: .*Broken pipe",
        "refused",
        "the connection was closed before the login",
        "sshd or a jump host takes no more of them (MaxStartups), or does not want us (hosts.deny). " + _BY_HAND,
    ),
    Row(
        r"Bad configuration option: (?P<it>\S+)|Bad SSH2 (?P<it2>.*)|Can't open user config file (?P<it3>[^:\n]+)",
        "failed",
        "ssh does not understand what it was told: {it}",
        "Check --ssh-config, --ssh-options and ~/.ssh/config. " + _BY_HAND,
    ),
    Row(r"Connection to \S+ closed by remote host", "failed", "it closed the connection in mid-session", _BY_HAND),
    Row(r"This account is currently not available", "refused", "the account has no shell there", "Use another User."),
    # --- sudo, on the far side
    Row(
        r"sudo: (?:a password is required|a terminal is required|.*not in the sudoers)",
        "refused",
        "sudo wants a password there",
        "Allow it without (NOPASSWD in sudoers), or leave --sudo out",
    ),
    Row(r"sudo: (?:command )?not found", "failed", "it has no sudo", "Leave --sudo out"),
    # --- srun
    Row(
        r"Access/permission denied",
        "refused",
        "Slurm does not let you start a step in that job",
        "It must be your own job: run it as its user (sudo -u USER breakranks …)",
        ("slurm",),
    ),
    Row(
        r"Requested nodes are busy|Immediate execution impossible|step creation (?:temporarily )?disabled",
        "failed",
        "Slurm has no room for one more step in the job",
        "Its Slurm gives a job's cores to one step at a time; reach the hosts over ssh: instead",
        ("slurm",),
    ),
    Row(
        r"DUE TO TIME LIMIT|has expired|Invalid job id|Job is pending execution|job credential revoked|STEP .* DUE TO",
        "failed",
        "the job has ended",
        _SEE_JOB,
        ("slurm",),
    ),
    Row(
        r"(?i:out.of.memory|oom.kill)",
        "failed",
        "the job's memory is used up, and Slurm ended what looked at it",
        "Reach the hosts over ssh: instead",
        ("slurm",),
    ),
    Row(
        r"Invalid job credential|Invalid credential",
        "failed",
        "its slurmd does not trust the controller (munge key, clock, or another user database)",
        "See the log of slurmd there",
        ("slurm",),
    ),
    Row(
        r"STEP \S+ ON \S+ CANCELLED|Job step aborted|Force Terminated",
        "failed",
        "Slurm ended the step",
        _SEE_JOB + "; a node of it may have gone: sinfo -R",
        ("slurm",),
    ),
    Row(
        r"(?:Unable to contact slurm controller|Socket timed out)[^\n]*",
        "failed",
        "the controller of Slurm does not answer",
        "See: scontrol ping",
        ("slurm",),
    ),
    # --- mpirun
    Row(
        r"orted: (?:command not found|No such file|not found)|prted: (?:command not found|No such file|not found)",
        "failed",
        "Open MPI is not where a login finds it there",
        "Start mpirun by its whole path (it then looks there on every host), or use ssh: with the same hosts",
        ("mpi",),
    ),
    Row(
        r"unable to complete a TCP connection",
        "failed",
        "mpirun's daemon there cannot connect back to this machine",
        "A firewall, or the wrong network (OMPI_MCA_oob_tcp_if_include); or use ssh: with the same hosts",
        ("mpi",),
    ),
    Row(
        r"reading stdin too slow|pmiserv_cb.c:\d+\): assert \(!closed\) failed",
        "failed",
        "the mpirun of MPICH cannot carry as much as must be sent",
        "Install breakranks there, or use ssh: with the same hosts",
        ("mpi",),
    ),
    Row(
        r"not enough slots available",
        "failed",
        "mpirun has no slot for it",
        "mpirun runs in an allocation that does not have this host",
        ("mpi",),
    ),
    Row(
        r"ORTE was unable to reliably start|PRTE has lost communication|ORTE has lost communication",
        "unreachable",
        "mpirun cannot start its daemon there, or has lost it",
        "Try it by hand: mpirun --host {bare} -np 1 hostname; or use ssh: with the same hosts",
        ("mpi",),
    ),
    # --- containers
    Row(
        r"(?i:no such container|pods? \"[^\"]+\" not found|container not found|no container with name)",
        "unreachable",
        "there is no such container",
        "List them: docker ps, podman ps, kubectl get pods",
        ("exec",),
    ),
    Row(
        r"(?i:is not running|only create exec sessions on running|completed pod|container .*(?:stopped|exited|paused))",
        "unreachable",
        "the container does not run",
        "List them: docker ps -a, podman ps -a, kubectl get pods",
        ("exec",),
    ),
    Row(
        r"Cannot connect to the Docker daemon[^\n.]*|connection to the server \S+ was refused",
        "refused",
        "the daemon that knows the containers does not answer",
        "Is it running, and is this the right cluster? (DOCKER_HOST, kubectl config current-context)",
        ("exec",),
    ),
    Row(
        r"Error from server \(Forbidden\)|permission denied while trying to connect to the Docker daemon",
        "refused",
        "you may not run commands in the container",
        "Ask for the right to exec (kubectl auth can-i create pods/exec), or for the group docker",
        ("exec",),
    ),
    # --- a shell, on either side
    Row(
        r"exec(?:ve)?(?: failed)?\b.*\bsh\b.*(?:not found|No such file)",
        "no-python",
        "it has no shell, and so no Python that could be found",
        "Look at it from outside of the container, on its host",
    ),
    Row(
        r"No space left on device",
        "failed",
        "a disk is full there",
        "Make room in /tmp, or set TMPDIR with --setup",
    ),
    Row(
        r"(?P<it>\S*python\S*)'?: (?:command )?not found|env: .(?P<it2>\S*python[^\s’']*).?: No such file",
        "no-python",
        "it has no {it}",
        "Name one that it has: --python /path/to/python3, or set it up first: --setup 'module load python'",
    ),
    Row(
        r"CommandNotFoundError|(?P<it>conda|module|mamba|micromamba): (?:command )?not found",
        "failed",
        "the command of --setup does not work there: {it}",
        "A login without a terminal reads fewer files: --setup 'source ~/miniconda3/etc/profile.d/conda.sh; …'",
    ),
)


_STRANGE = re.compile(r"[^\n\x20-\x7e\u00a0-\ud7ff\ue000-\uffff]")
_NOISE = re.compile(r"lacks support for cpu binding|Permanently added|^-+$|^\s*$|^sending |Check SLURM_JOB_ID")
_SIGNALS = 64  # the highest; a status of 255 is an error of the command itself
_TRIES = {
    "ssh": _BY_HAND,
    "pdsh": "Try it by hand: PDSH_RCMD_TYPE=ssh pdsh -S -w {login} true",
    "slurm": "Try it by hand: srun --jobid JOBID --overlap -w {bare} -N1 -n1 true",
    "mpi": "Try it by hand: mpirun --host {bare} -np 1 hostname",
    "exec": "Does the command pass standard input on (docker exec -i), without a terminal (-t)? Try it by hand: … cat",
}


def judge(scheme: str, host: str, status: int | None, text: str) -> Lost:
    """From how a carrier ended, and what it said, to a cause and a remedy."""
    text = _STRANGE.sub("", text[-20_000:])
    names = {"login": host, "bare": host.rpartition("@")[2]}
    if scheme == "slurm" and (lost := _launch(host, text)):
        return lost
    for row in ROWS:
        if row.schemes and scheme not in row.schemes:
            continue
        match = re.search(row.pattern, text)
        if match:
            it = next((found for found in match.groups() if found), "").strip()[:120]
            what = row.what.format(it=it, **names).rstrip(": ")
            return Lost(kind=row.kind, what=what, remedy=row.remedy.format(it=it, **names))
    return _by_status(scheme, status, text, _TRIES[scheme].format(**names))


def _launch(host: str, text: str) -> Lost | None:
    """srun could not start on a node: its own loss, and that of the others of its step."""
    failed = re.findall(r"Task launch for \S+ failed on node (\S+): ([^\n]*)", text)
    for node, why in failed:
        if node == host:
            kind = "unreachable" if "ommunication" in why or "onnect" in why else "failed"
            return Lost(
                kind=kind, what=f"Slurm cannot start anything there: {why}", remedy="See: sinfo -R; scontrol ping"
            )
    if not failed:
        return None
    return Lost(
        kind="failed",
        what=f"Slurm ended the step on all its nodes, as {failed[0][0]} could not be started",
        remedy="Try again: Slurm leaves that node out when it has noticed",
    )


def _by_status(scheme: str, status: int | None, text: str, by_hand: str) -> Lost:
    said = [line.strip() for line in text.splitlines() if not _NOISE.search(line)]
    exited = re.search(r"Exited with exit code (\d+)|Exit code: +(\d+)", text)
    if exited and status is not None:
        status = int(next(found for found in exited.groups() if found))
        said = [line for line in said if exited[0] not in line]
    last = f": {said[-1][:160]}" if said else ""
    match status:
        case None:
            return Lost(
                kind="timed-out", what=f"no answer in time{last}", remedy=f"Wait longer: --deadline 60. {by_hand}"
            )
        case 127:
            return Lost(
                kind="no-python", what=f"a program was not found there{last}", remedy="Name its Python: --python"
            )
        case 255 if scheme in ("ssh", "pdsh"):
            return Lost(kind="unreachable", what=f"ssh failed{last or ' and does not say why'}", remedy=by_hand)
        case 0:
            what = f"it ended at once, without a word of ours{last}"
            login = "" if scheme == "exec" else "A login script there may end the shell. "
            return Lost(kind="failed", what=what, remedy=login + by_hand)
    signal = -status if status < 0 else status - 128
    how = f"was killed by signal {signal}" if 0 < signal <= _SIGNALS else f"ended with status {status}"
    return Lost(kind="failed", what=f"what was started there {how}{last}", remedy=by_hand)
