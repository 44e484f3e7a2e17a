"""The command that is run on a host: it finds a Python, which runs stage one.

It passes through the transport and through the user's login shell, whichever that is. So its words have no newline,
quote, backslash, ``!`` or ``%``, which csh and fish interpret even in quotes.
"""

from __future__ import annotations

import ast
import base64
import functools
import json
import os
import re
import sys
import zlib
from collections.abc import Sequence

from breakranks.errors import UsageError
from breakranks.hosts.bootstrap import bundle

DEFAULT_PIECE_BYTES = 48_000
_NAMES = ("python3", "python3.13", "python3.12", "python3.11", "python3.10", "python")
_PARTS = ("find_python", "stage1", "install")
_NOT_PLAIN = re.compile(r"[^ -~]|['\\!%]")

# Sends a line to the controller, with $1 as data.
_SAY = 'br_say() { echo "@br1 NONCE $(uname -n) 0 . $1"; }; '
# $1: what Python runs, $2: its options, $3: the message if there is no Python, $4: the command that runs it (sudo),
# $5: the message if that fails; then the Pythons. Not by exec: a shim, or a Python without its libraries, ends with
# 127, and the next Python is tried. From the root folder: a Python whose PYTHONPATH has an empty entry imports even
# `os` from the current folder.
_FIND = (
    't=$1 o=$2 n=$3 w=$4 f=$5; shift 5; while test $# -gt 0; do p=$1; shift; case $p in "~/"*) p=$HOME/${p#??};; esac; '
    'p=$(command -v "$p" 2>/dev/null) || continue; test -f "$p" && test -x "$p" || continue; '
    "case $p in /*) ;; *) p=$PWD/$p;; esac; cd /; "
    'if test -n "$w"; then $w "$p" -c "" </dev/null >&2 || { br_say "$f"; exit 1; }; fi; '
    's=0; $w "$p" -c "$t" "$o" "$@" || s=$?; case $s in 126|127) ;; *) exit $s;; esac; done; br_say "$n"; exit 3'
)
# $1: what bash runs, $2: the message if there is no bash. Profiles must not read the agent's input: it is on 3.
_BASH = (
    'b=$1; command -v bash >/dev/null 2>&1 || { br_say "$2"; exit 1; }; shift 2; '
    'exec bash -lc "$b" breakranks "$@" 3<&0 </dev/null'
)
# $1: the user's text, $2: its encoding, $3: the message if it fails. What follows is the same as without --setup.
_SET_UP = (
    'br_text=$1; test "$2" = plain || br_text=$(echo "$1" | base64 -d); exec 4>&1; trap "br_say $3 >&4" EXIT; shift 3; '
    '{ HOOK eval "$br_text"; } </dev/null >&2 || exit 1; trap - EXIT; exec 0<&3 3<&- 4>&-; '
)
# `conda activate` is a function of the shell, which only interactive shells define.
_HOOK = (
    'test "$(type -t conda)" = function || for br_x in "$(command -v conda)" "$CONDA_EXE" PLACES; do '
    'if test -x "$br_x"; then eval "$("$br_x" shell.bash hook)"; break; fi; done; '
).replace("PLACES", " ".join(f"{at}/bin/conda" for at in ("~/miniconda3", "~/miniforge3", "~/anaconda3", "/opt/conda")))
# mamba 2 has its own hook, mamba 1 uses that of conda.
_MAMBA_HOOK = _HOOK + (
    'test "$(type -t mamba)" = function || eval "$(mamba shell hook --shell bash 2>/dev/null)"; '
    'test "$(type -t mamba)" = function || mamba() { conda "$@"; }; '
)
_HOOKS = {"conda": _HOOK, "mamba": _MAMBA_HOOK}


def remote_command(
    nonce: str,
    *,
    piece: int = DEFAULT_PIECE_BYTES,
    python: str | None = None,
    setup: str | None = None,
    sudo: bool = False,
    patience: float = 30.0,
    candidates: Sequence[str] | None = None,
) -> tuple[str, ...]:
    """Return the words to run on a host.

    ``candidates`` are the Pythons to try, in that order; ``python`` is the only one. ``setup`` is the user's text for
    bash, run first by a login shell. ``piece``: bytes of a message in one line. ``patience``: seconds without input
    after which it gives up.
    """
    if not re.fullmatch("[0-9a-f]{16}", nonce):
        raise ValueError(f"not a nonce: {nonce!r}")
    pythons = _pythons(python, setup, candidates)
    options = ",".join((nonce, str(piece), str(patience), bundle.digest()))
    by = "sudo -n" if sudo else ""
    sudo_failed = _failed("sudo -n cannot run Python on this host (it must not ask for a password)")
    find = (_text(), options, _message(stage="no-python", found=[]), by, sudo_failed, *pythons)
    say = _SAY.replace("NONCE", nonce)
    if setup is None:
        return ("sh", "-c", say + _FIND, "breakranks", *find)
    text, how = (setup, "plain") if not _NOT_PLAIN.search(setup) else (_coded(setup.encode()), "base64")
    words = setup.split()
    hook = _HOOKS.get(words[0], "") if words[1:2] == ["activate"] else ""
    bash = say + _SET_UP.replace("HOOK ", hook) + _FIND
    no_bash, set_up_failed = (
        _failed("there is no bash on this host, which --setup needs"),
        _failed(f"set-up failed: {setup}"),
    )
    return ("sh", "-c", say + _BASH, "breakranks", bash, no_bash, text, how, set_up_failed, *find)


def _pythons(python: str | None, setup: str | None, candidates: Sequence[str] | None) -> list[str]:
    if python is not None:
        if _NOT_PLAIN.search(python) or not python.strip():
            raise UsageError(
                f"{python!r} cannot be the name of a Python on a host",
                "Name it by a path without quotes, backslashes, ! or %.",
            )
        return [python]
    if candidates is None:
        # On a shared file system this Python is on the hosts as well. With --setup, the one that it selects is used.
        candidates = (*((sys.executable,) if setup is None else ()), *_NAMES)
    return [name for name in candidates if name and not _NOT_PLAIN.search(name)]


def _failed(what: str) -> str:
    return _message(stage="failed", what=what)


def _message(**fields: object) -> str:
    return _coded(b"j" + json.dumps(fields).encode())


def _coded(data: bytes) -> str:
    return base64.b64encode(data).decode()


@functools.cache
def _text() -> str:
    """Return what the remote Python runs, in one line. What Python 2.7 cannot parse is compressed in it."""
    folder = os.path.dirname(os.path.abspath(__file__))
    sources = []
    for part in _PARTS:
        with open(os.path.join(folder, f"{part}.py"), encoding="utf-8") as file:
            sources.append(minified(file.read()).encode())
    packed = _coded(zlib.compress(b"\0".join(sources), 9))
    # Nothing may be imported from the current folder. sys and posix are built in.
    return (
        'import sys,posix;sys.path=[p for p in sys.path if p not in ("",".",posix.readlink("/proc/self/cwd"))];'
        "import zlib,binascii;"
        f'text=zlib.decompress(binascii.a2b_base64("{packed}")).split(chr(0).encode());exec(text[0])'
    )


def minified(source: str) -> str:
    """Return a source without comments, docstrings and what is only for the type checker."""
    tree = ast.parse(source)
    tree.body = [node for node in tree.body if not _is_for_checker(node)]
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)


def _is_for_checker(node: ast.stmt) -> bool:
    match node:
        case ast.ImportFrom(module=str(module)):
            return module.startswith("breakranks.")
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
    return False
