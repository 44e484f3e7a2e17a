from __future__ import annotations

import json as _json
from typing import Any

from ._convert import JSON, convert
from ._errors import DecodeError
from ._plain import to_builtins


def encode(value: Any) -> bytes:
    plain = _json_values(to_builtins(value))
    return _json.dumps(plain, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def _json_values(value: Any) -> Any:
    """JSON has no number that is not one."""
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, dict):
        return {key: _json_values(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json_values(one) for one in value]
    return value


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


def decode(data: Any, *, type: Any = Any, strict: bool = True) -> Any:
    text = data if isinstance(data, str) else bytes(data).decode()
    try:
        value = _json.loads(text, parse_constant=_no_constant)
        if "\\ud" in text.lower():
            _json.dumps(value, ensure_ascii=False).encode()  # half a character is none
    except ValueError as error:
        raise DecodeError(f"JSON is malformed: {error}") from None
    return value if type is Any else convert(value, type, strict=strict, of=JSON)


def format(data: Any, *, indent: int = 2) -> Any:
    value = _json.loads(data)
    text = _json.dumps(value, indent=indent or None, ensure_ascii=False)
    return text if isinstance(data, str) else text.encode()
