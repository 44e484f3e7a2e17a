from __future__ import annotations


class MsgspecError(Exception):
    pass


class EncodeError(MsgspecError):
    pass


class DecodeError(MsgspecError, ValueError):
    pass


class ValidationError(DecodeError):
    """``path`` grows outwards while it is raised."""

    def __init__(self, what: str, path: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.path = path

    def __str__(self) -> str:
        return f"{self.what} - at `${self.path}`" if self.path else self.what


for _error in (MsgspecError, EncodeError, DecodeError, ValidationError):
    _error.__module__ = "msgspec"
