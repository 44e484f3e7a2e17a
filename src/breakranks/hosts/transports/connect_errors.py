"""Why a host was not reached: the messages of ssh, srun, mpirun and others, as causes and remedies.

The patterns match messages of OpenSSH 9.2, Slurm 22.05, Open MPI 4.1, docker 28, podman 4.3 and kubectl 1.32. The first
row that matches is used, so the messages of ssh come before those of the programs that run it. ``(?P<it>…)`` in a
pattern is ``{it}`` in the texts.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from breakranks.errors import THIS_BREAKRANKS
from breakranks.hosts.transports.transport_plan import LostHost

_BY_HAND = "Try it by hand: ssh -oBatchMode=yes {login} true"
_KEY = "Load your key (ssh-add), set User and IdentityFile in ~/.ssh/config, or use --ssh-options '-i KEY'. " + _BY_HAND
_SEE_JOB = "See: squeue --me"


class ErrorPattern(NamedTuple):
    pattern: str
    kind: str
    what: str
    remedy: str
    schemes: tuple[str, ...] = ()  # empty: any scheme


ROWS = (
    # --- ssh, also where another program starts it
    ErrorPattern(
        pattern=r"Could not resolve hostname (?P<it>\S+): ",
        kind="unreachable",
        what="the host name {it} is unknown",
        remedy="Check its spelling, or set its address: HostName in ~/.ssh/config (or --ssh-config FILE)",
    ),
    ErrorPattern(
        pattern=r"REMOTE HOST IDENTIFICATION HAS CHANGED",
        kind="refused",
        what="its host key has changed: the host was reinstalled, or another host answers",
        remedy="If it was reinstalled, remove the old key: ssh-keygen -R {bare}",
    ),
    ErrorPattern(
        pattern=r"Host key verification failed",
        kind="refused",
        what="its host key is unknown",
        remedy="Log in once (ssh {login}) and accept it, or use --ssh-options -oStrictHostKeyChecking=accept-new",
    ),
    ErrorPattern(
        pattern=r"Permissions 0\d+ for '(?P<it>[^']+)' are too open(?s:.*)Permission denied \(",
        kind="refused",
        what="ssh does not use the key {it}, which other users can read",
        remedy="chmod 600 {it}",
    ),
    ErrorPattern(
        pattern=r"(?i:access denied).{0,80}(?:no active jobs|not have any active|pam_slurm)",
        kind="refused",
        what="only users with a running Slurm job there may log in",
        remedy="Reach it through the job: slurm:JOBID",
    ),
    ErrorPattern(
        pattern=r"Permission denied \((?P<it>[a-z,-]+)",
        kind="refused",
        what="permission denied ({it})",
        remedy=_KEY,
    ),
    ErrorPattern(pattern=r"Permission denied, please try again", kind="refused", what="permission denied", remedy=_KEY),
    ErrorPattern(
        pattern=r"Too many authentication failures",
        kind="refused",
        what="ssh offered more keys than the host accepts",
        remedy="Choose one: IdentityFile and IdentitiesOnly yes in ~/.ssh/config",
    ),
    ErrorPattern(
        pattern=r"connect to host (?P<it>\S+ port \d+): Connection refused",
        kind="refused",
        what="nothing listens on {it}",
        remedy="Check whether sshd is running there. For another port: --ssh-options '-p PORT'",
    ),
    ErrorPattern(
        pattern=r"connect to host (?P<it>\S+ port \d+): Connection timed out",
        kind="unreachable",
        what="no answer from {it}",
        remedy="Is it up, and can this machine reach it? Through another host: ProxyJump in ~/.ssh/config",
    ),
    ErrorPattern(
        pattern=r"connect to host (?P<it>\S+) port \d+: (?:No route to host|Network is unreachable|Host is down)",
        kind="unreachable",
        what="there is no route to {it}",
        remedy="Is it up, and can this machine reach it? Through another host: ProxyJump in ~/.ssh/config",
    ),
    ErrorPattern(
        pattern=r"timed out during banner exchange|Connection to \S+ port \d+ timed out",
        kind="timed-out",
        what="it accepts the connection, but sshd does not answer: the host or a jump host hangs or is overloaded",
        remedy=_BY_HAND,
    ),
    ErrorPattern(
        pattern=r"Timeout, server \S+ not responding|client_loop: send disconnect|Connection reset by \S+ port",
        kind="unreachable",
        what="it stopped answering in mid-session",
        remedy="Has it crashed, or is its network down? " + _BY_HAND,
    ),
    ErrorPattern(
        pattern=r"(?:kex|ssh)_exchange_identification|Connection closed by \S+ port|banner exchange: .*Broken pipe",
        kind="refused",
        what="the connection was closed before the login",
        remedy="sshd or a jump host has too many logins (MaxStartups), or rejects this machine (hosts.deny). "
        + _BY_HAND,
    ),
    ErrorPattern(
        pattern=r"Bad configuration option: (?P<it>\S+)|Bad SSH2 (?P<it2>.*)"
        r"|Can't open user config file (?P<it3>[^:\n]+)",
        kind="failed",
        what="ssh does not understand its configuration: {it}",
        remedy="Check --ssh-config, --ssh-options and ~/.ssh/config. " + _BY_HAND,
    ),
    ErrorPattern(
        pattern=r"Connection to \S+ closed by remote host",
        kind="failed",
        what="it closed the connection in mid-session",
        remedy=_BY_HAND,
    ),
    ErrorPattern(
        pattern=r"This account is currently not available",
        kind="refused",
        what="the account has no shell there",
        remedy="Log in as another user (User in ~/.ssh/config).",
    ),
    # --- sudo, on the host
    ErrorPattern(
        pattern=r"sudo: (?:a password is required|a terminal is required|.*not in the sudoers)",
        kind="refused",
        what="sudo asks for a password there",
        remedy="Allow it without a password (NOPASSWD in sudoers), or omit --sudo",
    ),
    ErrorPattern(
        pattern=r"sudo: (?:command )?not found", kind="failed", what="sudo is not installed there", remedy="Omit --sudo"
    ),
    # --- srun
    ErrorPattern(
        pattern=r"Access/permission denied",
        kind="refused",
        what="permission denied to start a step in that Slurm job",
        remedy=f"Only the user of the job may: sudo -u USER {THIS_BREAKRANKS} …",
        schemes=("slurm",),
    ),
    ErrorPattern(
        pattern=r"Requested nodes are busy|Immediate execution impossible|step creation (?:temporarily )?disabled",
        kind="failed",
        what="Slurm cannot start another step in the job now",
        remedy="This Slurm gives the cores of a job to one step at a time. Use ssh: with the same hosts",
        schemes=("slurm",),
    ),
    ErrorPattern(
        pattern=r"DUE TO TIME LIMIT|has expired|Invalid job id|Job is pending execution"
        r"|job credential revoked|STEP .* DUE TO",
        kind="failed",
        what="the job has ended",
        remedy=_SEE_JOB,
        schemes=("slurm",),
    ),
    ErrorPattern(
        pattern=r"(?i:out.of.memory|oom.kill)",
        kind="failed",
        what="the memory of the job is used up, and Slurm ended the agent",
        remedy="Use ssh: with the same hosts",
        schemes=("slurm",),
    ),
    ErrorPattern(
        pattern=r"Invalid job credential|Invalid credential",
        kind="failed",
        what="its slurmd does not trust the controller (munge key, clock, or another user database)",
        remedy="See the log of slurmd there",
        schemes=("slurm",),
    ),
    ErrorPattern(
        pattern=r"STEP \S+ ON \S+ CANCELLED|Job step aborted|Force Terminated",
        kind="failed",
        what="Slurm ended the step",
        remedy=_SEE_JOB + "; one of its nodes may be down: sinfo -R",
        schemes=("slurm",),
    ),
    ErrorPattern(
        pattern=r"(?:Unable to contact slurm controller|Socket timed out)[^\n]*",
        kind="failed",
        what="the Slurm controller does not answer",
        remedy="See: scontrol ping",
        schemes=("slurm",),
    ),
    # --- mpirun
    ErrorPattern(
        pattern=r"orted: (?:command not found|No such file|not found)"
        r"|prted: (?:command not found|No such file|not found)",
        kind="failed",
        what="Open MPI is not in the PATH of a login there",
        remedy="Start mpirun by its whole path (it uses the same path on every host), or use ssh: with the same hosts",
        schemes=("mpi",),
    ),
    ErrorPattern(
        pattern=r"unable to complete a TCP connection",
        kind="failed",
        what="the daemon of mpirun there cannot connect to this machine",
        remedy="Check the firewall and the network (OMPI_MCA_oob_tcp_if_include), or use ssh: with the same hosts",
        schemes=("mpi",),
    ),
    ErrorPattern(
        pattern=r"reading stdin too slow|pmiserv_cb.c:\d+\): assert \(!closed\) failed",
        kind="failed",
        what="the mpirun of MPICH cannot carry as much data as must be sent",
        remedy="Install breakranks there, or use ssh: with the same hosts",
        schemes=("mpi",),
    ),
    ErrorPattern(
        pattern=r"not enough slots available",
        kind="failed",
        what="mpirun has no slot for it",
        remedy="Run breakranks outside the allocation, or in one that has this host; or use ssh: with the same hosts",
        schemes=("mpi",),
    ),
    ErrorPattern(
        pattern=r"ORTE was unable to reliably start|PRTE has lost communication|ORTE has lost communication",
        kind="unreachable",
        what="mpirun cannot start its daemon there, or has lost the connection to it",
        remedy="Try it by hand: mpirun --host {bare} -np 1 hostname; or use ssh: with the same hosts",
        schemes=("mpi",),
    ),
    # --- containers
    ErrorPattern(
        pattern=r"(?i:no such container|pods? \"[^\"]+\" not found|container not found|no container with name)",
        kind="unreachable",
        what="there is no such container",
        remedy="List them: docker ps, podman ps, kubectl get pods",
        schemes=("exec",),
    ),
    ErrorPattern(
        pattern=r"(?i:is not running|only create exec sessions on running"
        r"|completed pod|container .*(?:stopped|exited|paused))",
        kind="unreachable",
        what="the container is not running",
        remedy="List them: docker ps -a, podman ps -a, kubectl get pods",
        schemes=("exec",),
    ),
    ErrorPattern(
        pattern=r"Cannot connect to the Docker daemon[^\n.]*|connection to the server \S+ was refused",
        kind="refused",
        what="the container daemon does not answer",
        remedy="Is it running, and is this the right cluster? (DOCKER_HOST, kubectl config current-context)",
        schemes=("exec",),
    ),
    ErrorPattern(
        pattern=r"Error from server \(Forbidden\)|permission denied while trying to connect to the Docker daemon",
        kind="refused",
        what="permission denied to run commands in the container",
        remedy="Ask for the permission to exec (kubectl auth can-i create pods/exec), or for the group docker",
        schemes=("exec",),
    ),
    # --- a shell, here or on the host
    ErrorPattern(
        pattern=r"exec(?:ve)?(?: failed)?\b.*\bsh\b.*(?:not found|No such file)",
        kind="no-python",
        what="it has no shell, which is needed to find a Python",
        remedy="Run breakranks outside of the container, on its host",
    ),
    ErrorPattern(
        pattern=r"No space left on device",
        kind="failed",
        what="a disk is full there",
        remedy="Free space in /tmp, or set TMPDIR with --setup",
    ),
    ErrorPattern(
        pattern=r"(?P<it>\S*python\S*)'?: (?:command )?not found|env: .(?P<it2>\S*python[^\s’']*).?: No such file",
        kind="no-python",
        what="it has no {it}",
        remedy="Name one: --python /path/to/python3, or make one available: --setup 'module load python'",
    ),
    ErrorPattern(
        pattern=r"CommandNotFoundError|(?P<it>conda|module|mamba|micromamba): (?:command )?not found",
        kind="failed",
        what="the command of --setup failed there: {it}",
        remedy="A login without a terminal reads fewer files: --setup 'source ~/miniconda3/etc/profile.d/conda.sh; …'",
    ),
)


_STRANGE = re.compile(r"[^\n\x20-\x7e\u00a0-\ud7ff\ue000-\uffff]")
_NOISE = re.compile(r"lacks support for cpu binding|Permanently added|^-+$|^\s*$|^sending |Check SLURM_JOB_ID")
_MAX_SIGNAL = 64  # above: a status of 255 is an error of the command itself
_TRIES = {
    "ssh": _BY_HAND,
    "pdsh": "Try it by hand: PDSH_RCMD_TYPE=ssh pdsh -S -w {login} true",
    "slurm": "Try it by hand: srun --jobid JOBID --overlap -w {bare} -N1 -n1 true",
    "mpi": "Try it by hand: mpirun --host {bare} -np 1 hostname",
    "exec": "The command must pass on standard input (docker exec -i), without a terminal (-t). Try it by hand: … cat",
}


def judge(scheme: str, host: str, status: int | None, text: str) -> LostHost:
    """Return the cause and remedy for a transport's exit status (None: ended at the deadline) and output."""
    text = _STRANGE.sub("", text[-20_000:])
    names = {"login": host, "bare": host.rpartition("@")[2]}
    if scheme == "slurm" and (lost := _launch(host, text)):
        return lost
    for row in ROWS:
        if row.schemes and scheme not in row.schemes:
            continue
        match = re.search(row.pattern, text)
        if match:
            it = next((group for group in match.groups() if group), "").strip()[:120]
            what = row.what.format(it=it, **names).rstrip(": ")
            return LostHost(kind=row.kind, what=what, remedy=row.remedy.format(it=it, **names))
    return _by_status(scheme, status, text, _TRIES[scheme].format(**names))


def _launch(host: str, text: str) -> LostHost | None:
    """Return the cause if srun could not start on a node: for that node, and for the others of its step."""
    failed = re.findall(r"Task launch for \S+ failed on node (\S+): ([^\n]*)", text)
    for node, why in failed:
        if node == host:
            kind = "unreachable" if "ommunication" in why or "onnect" in why else "failed"
            return LostHost(
                kind=kind, what=f"Slurm cannot start a step there: {why}", remedy="See: sinfo -R; scontrol ping"
            )
    if not failed:
        return None
    return LostHost(
        kind="failed",
        what=f"Slurm ended the step on all its nodes, because {failed[0][0]} could not be started",
        remedy="Try again: Slurm omits that node once it has marked it",
    )


def _by_status(scheme: str, status: int | None, text: str, by_hand: str) -> LostHost:
    lines = [line.strip() for line in text.splitlines() if not _NOISE.search(line)]
    exited = re.search(r"Exited with exit code (\d+)|Exit code: +(\d+)", text)
    if exited and status is not None:
        status = int(next(group for group in exited.groups() if group))
        lines = [line for line in lines if exited[0] not in line]
    last = f": {lines[-1][:160]}" if lines else ""
    match status:
        case None:
            return LostHost(
                kind="timed-out", what=f"no answer in time{last}", remedy=f"Wait longer: --deadline 60. {by_hand}"
            )
        case 127:
            return LostHost(
                kind="no-python", what=f"a program was not found there{last}", remedy="Name its Python: --python"
            )
        case 255 if scheme in ("ssh", "pdsh"):
            return LostHost(kind="unreachable", what=f"ssh failed{last or ' without a message'}", remedy=by_hand)
        case 0:
            what = f"the command there ended with status 0{last}"
            login = "" if scheme == "exec" else "A login script there may end the shell. "
            return LostHost(kind="failed", what=what, remedy=login + by_hand)
    signal = -status if status < 0 else status - 128
    how = f"was killed by signal {signal}" if 0 < signal <= _MAX_SIGNAL else f"ended with status {status}"
    return LostHost(kind="failed", what=f"the command there {how}{last}", remedy=by_hand)
