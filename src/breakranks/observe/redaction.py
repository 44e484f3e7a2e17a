"""Command lines without their secrets."""

from __future__ import annotations

import re
from collections.abc import Iterable

HIDDEN = "***"
_SECRET_WORD = r"(?:tokens?|keys?|secrets?|passwords?|passwd|passphrase|pwd|pass|credentials?|auth|authorization)"
# The last word of a name decides: --tokenizer and --max-tokens are shown, hf_token and apiKey are hidden.
_SECRET_NAME = re.compile(rf"(?i)[\w.+-]*?{_SECRET_WORD}\Z")
_HARMLESS_NAME = re.compile(r"(?i)(?:.*[-_.])?(?:(?:max|min|num|n|eos|bos|pad|unk|per)[-_].*tokens?|tokens)\Z")
_REDACT_DEPTH = 3
_ASSIGNED = re.compile(r"(?s)(-{0,2}[A-Za-z_+][\w.+-]*)=(.*)\Z")
_VALUE = r"""(?:"[^"]*"|'[^']*'|[^\s;&|,}]+)"""
_INSIDE = (  # within one word: a shell's -c, JSON, a header
    re.compile(r"()([A-Za-z_][\w.+-]*)(=)" + _VALUE),
    re.compile(r"(\s|^)(--[A-Za-z][\w.+-]*)(\s+|=)(?!--)" + _VALUE),
    re.compile(r"""(?i)()([a-z_][\w.+-]*)(["']\s*:\s*|\s*:\s+)(?:bearer\s+|basic\s+)?""" + _VALUE),
)
_USER_INFO = re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://)([^/\s@]*:[^/\s@]*|(?<=http://)[^/\s@]+|(?<=https://)[^/\s@]+)@")
# Secrets recognized by their shape, whatever their name: Hugging Face, GitHub, OpenAI, AWS, Slack.
_SHAPE = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|sk-[\w-]{16,}"
    r"|AKIA[A-Z0-9]{12,}|xox[a-z]-[\w-]{10,})"
)


def redact(command: Iterable[str]) -> tuple[str, ...]:
    """Return a command line with its secrets hidden, as it may be shown, stored and sent.

    >>> redact(["train.py", "--hf-token", "abc", "API_KEY=x", "--tokenizer", "gpt2"])
    ('train.py', '--hf-token', '***', 'API_KEY=***', '--tokenizer', 'gpt2')
    """
    shown: list[str] = []
    hide_next = False
    for word in command:
        # "--auth --verbose": an option without a value. A secret may start with one dash (base64url).
        if hide_next and not word.startswith("--") and not (len(word) == 2 and word[0] == "-"):
            hide_next = False
            shown.append(HIDDEN)
            continue
        hide_next = word.startswith("-") and _is_secret_name(word)
        shown.append(word if hide_next else _redact_word(word))
    return tuple(shown)


def _redact_word(word: str, depth: int = _REDACT_DEPTH) -> str:
    """``depth`` limits the nesting of values within values."""
    assigned = _ASSIGNED.match(word) if depth else None
    if assigned:
        return f"{assigned[1]}={HIDDEN if _is_secret_name(assigned[1]) else _redact_word(assigned[2], depth - 1)}"
    if depth and any(letter in word for letter in " \"'("):
        for pattern in _INSIDE:
            word = pattern.sub(lambda match: _redact_inside(match, depth), word)
    return _SHAPE.sub(HIDDEN, _USER_INFO.sub(rf"\1{HIDDEN}@", word))


def _redact_inside(match: re.Match[str], depth: int) -> str:
    head = f"{match[1]}{match[2]}{match[3]}"
    return head + (HIDDEN if _is_secret_name(match[2]) else _redact_word(match[0][len(head) :], depth - 1))


def _is_secret_name(name: str) -> bool:
    return _SECRET_NAME.match(name) is not None and _HARMLESS_NAME.match(name.lstrip("-")) is None
