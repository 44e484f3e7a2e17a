from __future__ import annotations

import struct
from typing import Any

from ._convert import MSGPACK, convert
from ._errors import DecodeError
from ._struct import Struct

_DOUBLE = struct.Struct(">Bd")
# Opcodes of the sizes 1, 2, 4 and 8 bytes.
_STR, _BIN, _ARRAY, _MAP = (0xD9, 0xDA, 0xDB), (0xC4, 0xC5, 0xC6), (0, 0xDC, 0xDD), (0, 0xDE, 0xDF)
_NUMBERS = {0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q",
            0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q"}  # fmt: skip
_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}
_SIZED = {0xC4: (bytes, 1), 0xC5: (bytes, 2), 0xC6: (bytes, 4), 0xD9: (str, 1), 0xDA: (str, 2), 0xDB: (str, 4),
          0xDC: (list, 2), 0xDD: (list, 4), 0xDE: (dict, 2), 0xDF: (dict, 4)}  # fmt: skip


def encode(value: Any) -> bytes:
    out = bytearray()
    _put(out, value)
    return bytes(out)


def _put(out: bytearray, value: Any) -> None:
    kind = type(value)
    if kind is str:
        data = value.encode()
        if len(data) < 32:
            out.append(0xA0 | len(data))
        else:
            _head(out, len(data), _STR)
        out += data
    elif kind is int:
        _put_int(out, value)
    elif kind is float:
        out += _DOUBLE.pack(0xCB, value)
    elif value is None:
        out.append(0xC0)
    elif kind is bool:
        out.append(0xC3 if value else 0xC2)
    else:
        _put_many(out, value)


def _put_many(out: bytearray, value: Any) -> None:
    if isinstance(value, Struct):
        _put_struct(out, value)
    elif isinstance(value, (list, tuple, set, frozenset)):
        _head(out, len(value), _ARRAY, 0x90)
        for one in value:
            _put(out, one)
    elif isinstance(value, dict):
        _head(out, len(value), _MAP, 0x80)
        for key, one in value.items():
            _put(out, key)
            _put(out, one)
    elif isinstance(value, (bytes, bytearray, memoryview)):
        data = bytes(value)
        _head(out, len(data), _BIN)
        out += data
    elif isinstance(value, str):
        _put(out, str.__str__(value))
    else:
        raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")


def _put_struct(out: bytearray, value: Any) -> None:
    cls = type(value)
    tag = cls.__struct_tag__
    names = cls.__struct_fields__
    count = len(names) + (tag is not None)
    if cls.__struct_options__["array_like"]:
        _head(out, count, _ARRAY, 0x90)
        if tag is not None:
            _put(out, tag[1])
        for one in value.__struct_values__():
            _put(out, one)
        return
    _head(out, count, _MAP, 0x80)
    if tag is not None:
        _put(out, tag[0])
        _put(out, tag[1])
    for name, one in zip(names, value.__struct_values__(), strict=True):
        _put(out, name)
        _put(out, one)


def _head(out: bytearray, size: int, codes: tuple[int, int, int], short: int = 0) -> None:
    if short and size < 16:
        out.append(short | size)
    elif codes[0] and size < 1 << 8:
        out += bytes((codes[0], size))
    elif size < 1 << 16:
        out += struct.pack(">BH", codes[1], size)
    elif size < 1 << 32:
        out += struct.pack(">BI", codes[2], size)
    else:
        raise ValueError("can't encode more than 2**32 - 1 of anything")


def _put_int(out: bytearray, value: int) -> None:
    if -32 <= value < 128:
        out.append(value & 0xFF)
        return
    for code, size in enumerate((8, 16, 32, 64)):
        if 0 <= value < 1 << size:
            out.append(0xCC + code)
        elif value < 0 and value >= -(1 << size - 1):
            out.append(0xD0 + code)
        else:
            continue
        out += value.to_bytes(size // 8, "big", signed=value < 0)
        return
    raise OverflowError("can't serialize ints < -2**63 or > 2**64 - 1")


def decode(data: Any, *, type: Any = Any, strict: bool = True) -> Any:
    reader = _Reader(bytes(data))
    value = reader.value()
    if reader.at != len(reader.data):
        raise DecodeError(f"MessagePack data is malformed: trailing characters (byte {reader.at})")
    return value if type is Any else convert(value, type, strict=strict, of=MSGPACK)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, size: int) -> bytes:
        found = self.data[self.at : self.at + size]
        if len(found) < size:
            raise DecodeError("Input data was truncated")
        self.at += size
        return found

    def value(self, as_key: bool = False) -> Any:
        code = self.take(1)[0]
        if code < 0x80:
            return code
        if code >= 0xE0:
            return code - 256
        if code < 0x90:
            return self.map(code & 15)
        if code < 0xA0:
            return self.array(code & 15, as_key)
        if code < 0xC0:
            return self.take(code & 31).decode()
        if code in _CONSTANTS:
            return _CONSTANTS[code]
        if code in _NUMBERS:
            form = _NUMBERS[code]
            return struct.unpack(form, self.take(struct.calcsize(form)))[0]
        if code in _SIZED:
            kind, width = _SIZED[code]
            size = int.from_bytes(self.take(width), "big")
            if kind is list:
                return self.array(size, as_key)
            if kind is dict:
                return self.map(size)
            found = self.take(size)
            return found.decode() if kind is str else found
        raise DecodeError(f"MessagePack data is malformed: invalid opcode '\\x{code:02x}' (byte {self.at - 1})")

    def array(self, size: int, as_key: bool) -> Any:
        found = [self.value(as_key) for _ in range(size)]
        return tuple(found) if as_key else found

    def map(self, size: int) -> dict[Any, Any]:
        made: dict[Any, Any] = {}
        for _ in range(size):
            key = self.value(as_key=True)
            try:
                hash(key)
            except TypeError:
                what = f"MessagePack data is malformed: map keys must be hashable (byte {self.at})"
                raise DecodeError(what) from None
            made[key] = self.value()
        return made
