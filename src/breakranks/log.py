"""A log of what was run, asked and refused, and how long it took.

    log = Log("observe")
    log.info("stack refused", pid=4711, why="process 4711 is already traced by process 12")

    2026-11-16 09:41:15.123 INFO observe[4242] stack refused pid=4711 why="process 4711 is already traced by process 12"

It uses the standard library's ``logging``, with one logger per package (``breakranks.observe``), and imports it only
when a log is asked for. Until then a call costs less than a microsecond. Every value passes ``redact``.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from breakranks.errors import UsageError

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Iterable, Sequence

    Redact = Callable[[Iterable[str]], Sequence[str]]

DEBUG, INFO, OFF = 10, 20, 100  # the first two are logging's own numbers
_LEVELS = {DEBUG: "DEBUG", INFO: "INFO"}
_ROOT = "breakranks"
_MAX_WORD_CHARACTERS = 200  # of one word of a command line
_MAX_VALUE_CHARACTERS = 1_000
_MAX_TIME_SECONDS = 1e11  # time.localtime fails for much later times


_level = OFF  # the lowest level that is logged
_redact: Redact = list  # set by configure


class Log:
    """The log of one package. Values are numbers, texts, or a command line as a sequence of words."""

    def __init__(self, room: str) -> None:
        self._name = f"{_ROOT}.{room}"

    def info(self, message: str, **values: object) -> None:
        if _level <= INFO:
            self._write(INFO, message, values)

    def debug(self, message: str, **values: object) -> None:
        if _level <= DEBUG:
            self._write(DEBUG, message, values)

    def _write(self, level: int, message: str, values: dict[str, object]) -> None:
        import logging

        words = [message, *(f"{name}={_text(value)}" for name, value in values.items() if value is not None)]
        logging.getLogger(self._name).log(level, "%s", " ".join(words))


def level() -> int:
    """Return the lowest level that is logged: DEBUG, INFO or OFF."""
    return _level


def milliseconds(since: float, until: float | None = None) -> float:
    """Return the time from one reading of ``time.monotonic`` to another, or to now."""
    return round(((time.monotonic() if until is None else until) - since) * 1000, 1)


def configure(verbose: int, path: str, redact: Redact) -> None:
    """Log to standard error (``verbose`` 1: INFO, 2 or more: DEBUG) and, if there is a ``path``, DEBUG to that file.

    A second call in a process has no effect. Raise UsageError if the file cannot be opened.
    """
    if _level < OFF or not (verbose > 0 or path):
        return
    targets = [(2, DEBUG if verbose > 1 else INFO)] if verbose > 0 else []
    if path:
        targets.append((_opened(path), DEBUG))
    for descriptor, wanted in targets:
        _install(_handler(descriptor), wanted, redact)


def configure_relay(wanted: int, tell: Callable[[float, int, str, int, str], None], redact: Redact) -> None:
    """On a host: pass each record to ``tell`` (time, level, package, pid, text), which sends it to the controller."""
    import logging

    class Relay(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            tell(record.created, record.levelno, _room(record), record.process or 0, record.getMessage())

    if _level == OFF:
        _install(Relay(), DEBUG if wanted <= DEBUG else INFO, redact)


def relay(host: str, created: float, wanted: int, room: str, pid: int, text: str) -> None:
    """On the controller: log a record of a host. No part of it is trusted."""
    import logging

    known = DEBUG if wanted <= DEBUG else INFO
    plain = _printable("".join(letter for letter in room if letter.isalnum() or letter in "_.")[:40])
    record = logging.LogRecord(f"{_ROOT}.{plain}", known, "", 0, "%s", (_printable(_hidden(text[:4000])),), None)
    record.created = created if abs(created) < _MAX_TIME_SECONDS else time.time()
    record.process, record.host = pid, host
    logging.getLogger(_ROOT).handle(record)


def _handler(descriptor: int) -> logging.Handler:
    import logging

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            _write_all(descriptor, _line(record))

    return Lines()


def _install(handler: logging.Handler, wanted: int, redact: Redact) -> None:
    global _level, _redact
    import logging

    handler.setLevel(wanted)
    logger = logging.getLogger(_ROOT)
    logger.addHandler(handler)
    logger.propagate = False
    logger.setLevel(min(_level, wanted))
    _level, _redact = min(_level, wanted), redact


def _opened(path: str) -> int:
    try:
        return os.open(os.path.expanduser(path), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(
            f"BREAKRANKS_LOG names {path}, which cannot be written: {why}",
            "Name a file in a folder of your own: BREAKRANKS_LOG=~/breakranks.log",
        ) from error


def _write_all(descriptor: int, line: str) -> None:
    """Write a line at once, so that lines of several threads and commands do not mix. Errors such as a full disk are
    ignored."""
    try:
        os.write(descriptor, line.encode("utf-8", "backslashreplace"))
    except OSError:
        pass


def _line(record: logging.LogRecord) -> str:
    moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
    host = getattr(record, "host", "")
    where = f"{host}:{_room(record)}" if host else _room(record)
    thousandth = int(record.created * 1000) % 1000
    name = _LEVELS.get(record.levelno, str(record.levelno))
    return f"{moment}.{thousandth:03d} {name} {where}[{record.process}] {record.getMessage()}\n"


def _room(record: logging.LogRecord) -> str:
    return record.name.removeprefix(f"{_ROOT}.")


def _text(value: object) -> str:
    """Return a value as it is logged: without secrets, and in quotes if it has spaces."""
    if isinstance(value, (bool, int, float)):
        return str(value)
    if isinstance(value, (list, tuple)):
        import shlex

        words = map(_cut, _redact([str(word) for word in value]))
        text = " ".join(shlex.quote(word) if not word or any(c in " '\"" for c in word) else word for word in words)
    else:
        text = _hidden(str(value))
    text = _printable(text)
    if len(text) > _MAX_VALUE_CHARACTERS:
        text = f"{text[:_MAX_VALUE_CHARACTERS]}…"
    plain = text and not any(letter in ' "=' for letter in text)
    return text if plain else '"' + text.replace('"', '\\"') + '"'


def _cut(word: str) -> str:
    return word if len(word) <= _MAX_WORD_CHARACTERS else f"{word[:_MAX_WORD_CHARACTERS]}…({len(word)} characters)"


def _hidden(text: str) -> str:
    return "\n".join(_redact(text.split("\n")))


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
