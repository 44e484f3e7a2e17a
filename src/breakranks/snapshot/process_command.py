"""Short command lines: what runs and with which arguments, without the interpreter."""

from __future__ import annotations

from collections.abc import Sequence

_INTERPRETERS = ("python", "pypy")
_OPTIONS_WITH_VALUE = "WX"
_LONG_OPTION_WITH_VALUE = "--check-hash-based-pycs"
_MODULE, _CODE = "m", "c"


def program(command: Sequence[str]) -> tuple[str, ...]:
    """Return the script or module that a command line runs, and its arguments.

    >>> program(("/usr/bin/python3", "-u", "train.py", "--lr", "3"))
    ('train.py', '--lr', '3')
    >>> program(("python", "-um", "torch.distributed.run", "train.py"))
    ('torch.distributed.run', 'train.py')
    >>> program(("/usr/bin/python3", "-c", "print(1)"))
    ('python3', '-c', 'print(1)')
    """
    if not command or not _base(command[0]).startswith(_INTERPRETERS):
        return tuple(command)
    return _script(command[1:]) or (_base(command[0]), *command[1:])


def _script(words: Sequence[str]) -> tuple[str, ...]:
    """Return the same from the options of an interpreter. Empty: it runs no script and no module, but code or its
    input."""
    left = list(words)
    while left and left[0] != "-":
        word = left[0]
        if not word.startswith("-"):
            return tuple(left)
        left.pop(0)
        if word.startswith("--"):
            del left[: word == _LONG_OPTION_WITH_VALUE]
            continue
        letter, value = _option_with_value(word)
        if letter == _MODULE:
            return (value, *left) if value else tuple(left)
        if letter == _CODE:
            break
        del left[: bool(letter) and not value]
    return ()


def _option_with_value(word: str) -> tuple[str, str]:
    """Return the letter in ``-um`` that takes a value, and the value if it is in the same word. Empty: none does."""
    for at, letter in enumerate(word):
        if letter in _OPTIONS_WITH_VALUE + _MODULE + _CODE:
            return letter, word[at + 1 :]
    return "", ""


def command_line(command: Sequence[str], limit: int = 0) -> str:
    """Return a command line in ``limit`` characters (0: unlimited) that still shows the script.

    A program in a ``bin`` folder is shown by its name. A longer text loses other folders first, then the options of a
    launcher, then its end.

    >>> command_line(("/v/bin/python", "/v/bin/torchrun", "--nproc-per-node", "8", "/home/train.py", "--lr", "3"), 40)
    'torchrun … train.py --lr 3'
    """
    words = program(command)
    if words and words[0].rpartition("/")[0].endswith("bin"):
        words = (_base(words[0]), *words[1:])
    text = joined(words)
    if not limit or len(text) <= limit:
        return text
    words = tuple(_base(word) if word.startswith(("/", "~/")) else word for word in words)
    text = joined(words)
    if len(text) <= limit:
        return text
    script = next((at for at, word in enumerate(words) if word.endswith(".py")), 0)
    if script > 1:
        text = joined((words[0], "…", *words[script:]))
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _base(path: str) -> str:
    return path.rpartition("/")[2] or path


def joined(words: Sequence[str]) -> str:
    """Return words on one line; those with blanks in quotes."""
    return " ".join(word if word and " " not in word else f"'{word}'" for word in words)
