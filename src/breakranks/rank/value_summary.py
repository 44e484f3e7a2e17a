"""A summary of a value in figures that ranks can compare: numbers, and tensors of torch, numpy and MindSpore.

Reading only: no collective (the figures of a DTensor are those of its local shard), no autograd, no random numbers, and
none of the job's own modes or subclasses run. Minimum, maximum and mean are those of the finite elements.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import math
import reprlib
import sys
from collections.abc import Iterator
from typing import Any

from breakranks.rank import stuck_device

EXACT = 2**53  # larger integers are not exact in other readers of JSON
DIGESTED_BYTES = 64 << 20  # of a larger tensor, the digest covers a sample
SAMPLE_ELEMENTS = 1 << 20
COUNTED_ELEMENTS = 1 << 27  # a larger tensor is not summarised: that would delay the job
CHUNK_ELEMENTS = 1 << 22
MAX_TEXT_CHARACTERS = 256 * 1024
_MAX_PARTS = 20_000
COMPLEX = "is complex: no minimum, maximum or mean"

Facts = dict[str, Any]


def describe(value: object) -> Facts | None:
    """Return the figures of a number or a tensor, ready for JSON; None for anything else."""
    try:
        if isinstance(value, (bool, int, float)) and not _is(value, "numpy", "generic"):
            return {"kind": "number", "type": type(value).__name__, "value": _number(value)}
        if _is(value, "numpy", "generic"):
            return _numpy_scalar(value)
        if _is(value, "torch", "Tensor"):
            return _torch_tensor(value)
        if _is(value, "numpy", "ndarray"):
            return _array(value, type(value).__name__)
        if _is(value, "mindspore", "Tensor"):
            return _mindspore_tensor(value)
    except Exception:
        pass
    return None


def bounded(value: Any) -> tuple[str, int]:
    """Return the repr of a value, and the number of characters that were left out of it."""
    if isinstance(value, (str, bytes, bytearray)) and len(value) > MAX_TEXT_CHARACTERS:
        return repr(value[:MAX_TEXT_CHARACTERS]), len(value) - MAX_TEXT_CHARACTERS
    if type(value) in (list, tuple, set, frozenset, dict) and len(value) > _MAX_PARTS:
        short = reprlib.Repr()
        for name in ("maxlist", "maxtuple", "maxset", "maxfrozenset", "maxdict", "maxstring", "maxother"):
            setattr(short, name, 1000)
        return f"{short.repr(value)} ({len(value):,} elements)", 0
    return repr(value), 0


def _is(value: object, module: str, name: str) -> bool:
    kind = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and isinstance(value, kind)


def _number(value: Any) -> Any:
    if isinstance(value, bool):
        return bool(value)
    if isinstance(value, int):
        return int(value) if abs(value) <= EXACT else str(int(value))
    number = float(value)
    if math.isnan(number):
        return "nan"
    if math.isinf(number):
        return "inf" if number > 0 else "-inf"
    return number


def _numpy_scalar(value: Any) -> Facts | None:
    kind = {"b": bool, "i": int, "u": int, "f": float}.get(value.dtype.kind)
    return None if kind is None else {"kind": "number", "type": value.dtype.name, "value": _number(kind(value))}


def _digest(data: Any) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def _noted(facts: Facts, note: str) -> Facts:
    return {**facts, "note": note}


# torch


def _torch_tensor(value: Any) -> Facts:
    torch: Any = sys.modules["torch"]
    with contextlib.ExitStack() as stack:
        for quiet in _quiet(torch):
            stack.enter_context(quiet)
        facts: Facts = {
            "kind": "tensor",
            "type": type(value).__name__,
            "shape": [int(size) for size in value.shape],
            "dtype": str(value.dtype).removeprefix("torch."),
            "device": str(value.device),
        }
        local: Any = getattr(value, "_local_tensor", None) if _has_base(value, "DTensor") else value
        if local is not value:
            facts["local"] = _placed(value, local)
        if _has_base(local, "AsyncCollectiveTensor"):
            if not getattr(local, "completed", False):
                return _noted(facts, "is the result of a collective that has not completed")
            local = local.elem
        facts["count"] = int(local.numel())
        why = _unreadable(torch, local)
        if why:
            return _noted(facts, why)
        try:
            return {**facts, **_torch_figures(torch, local)}
        except Exception as error:
            return _noted(facts, f"could not be read: {type(error).__name__}")


def _quiet(torch: Any) -> Iterator[Any]:
    """Yield contexts that hide these operations from autograd and from the job's modes and subclasses."""
    yield torch.no_grad()
    off = getattr(torch._C, "DisableTorchFunction", None) or getattr(torch._C, "DisableTorchFunctionSubclass", None)
    if off is not None:
        yield off()
    modes = getattr(sys.modules.get("torch.utils._python_dispatch"), "_disable_current_modes", None)
    if modes is not None:
        yield modes()


def _has_base(value: Any, name: str) -> bool:
    return any(kind.__name__ == name for kind in type(value).__mro__)


def _placed(value: Any, local: Any) -> str:
    placements = [_placement(placement) for placement in value._spec.placements]
    kinds = {text.partition("(")[0] for text in placements}
    part = "shard" if kinds & {"Shard", "_StridedShard"} else "partial sum" if "Partial" in kinds else "replica"
    return f"{part} {tuple(local.shape)} of {tuple(value.shape)}, {', '.join(placements)}"


def _placement(placement: Any) -> str:
    detail = getattr(placement, "dim", getattr(placement, "reduce_op", ""))
    return f"{type(placement).__name__}({detail})"


def _unreadable(torch: Any, tensor: Any) -> str:
    """Return why a tensor cannot be read, or an empty text."""
    if tensor.device.type == "meta":
        return "has no data: it is on the meta device"
    if _has_base(tensor, "FakeTensor"):
        return "has no data: it is a fake tensor"
    harmless = (getattr(torch._C, "_disabled_torch_dispatch_impl", None), torch.Tensor.__torch_dispatch__)
    if not any(type(tensor).__torch_dispatch__ is dispatch for dispatch in harmless):
        return f"is a {type(tensor).__name__}, which overrides torch's operations"
    functorch = getattr(torch._C, "_functorch", None)
    if functorch is not None and functorch.is_functorch_wrapped_tensor(tensor):
        return "is inside a transform of torch.func"
    if tensor.layout != torch.strided:
        return f"is {str(tensor.layout).removeprefix('torch.').replace('_', ' ')}, not dense"
    if tensor.numel() == 0:
        return "has no elements"
    if not tensor.is_quantized and _reach(tensor) > tensor.untyped_storage().nbytes():
        # Reading it would crash the process.
        return "its memory is freed (FSDP frees it when it reshards)"
    return _busy(torch, tensor)


def _reach(tensor: Any) -> int:
    """Return the number of bytes of its storage that a tensor spans."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return int((tensor.storage_offset() + last + 1) * tensor.element_size())


def _busy(torch: Any, tensor: Any) -> str:
    """Return why reading would wait for the device, which may wait for other ranks; or an empty text."""
    if tensor.device.type != "cuda":
        return ""
    if torch.cuda.is_current_stream_capturing():
        return "a CUDA graph is being captured"
    return "its device is still busy with earlier work, perhaps a collective" if stuck_device.is_stuck(tensor) else ""


def _torch_figures(torch: Any, tensor: Any) -> Facts:
    tensor = tensor.detach()
    if type(tensor) is not torch.Tensor:
        tensor = tensor.as_subclass(torch.Tensor)
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    tensor = tensor.resolve_conj().resolve_neg()
    count = tensor.numel()
    if count > COUNTED_ELEMENTS:
        # If it is not contiguous, it would have to be copied.
        found = {"digest": _sampled(torch, tensor.view(-1))} if tensor.is_contiguous() else {}
        return _noted(found, "is too large for a summary")
    flat = tensor.reshape(-1)
    found = _torch_counted(torch, flat)
    found["digest"] = _sampled(torch, flat)
    if count == 1 and not flat.is_complex():
        found["value"] = _number(flat.item())
    return found


def _sampled(torch: Any, flat: Any) -> str:
    step = 1 if flat.numel() * flat.element_size() <= DIGESTED_BYTES else max(1, flat.numel() // SAMPLE_ELEMENTS)
    data = flat[::step].contiguous().cpu().view(torch.uint8)
    return _digest((ctypes.c_char * data.numel()).from_address(data.data_ptr()))


def _torch_counted(torch: Any, flat: Any) -> Facts:
    if flat.is_complex():
        return {"nan": int(flat.isnan().sum()), "inf": int(flat.isinf().sum()), "note": COMPLEX}
    floating = flat.is_floating_point()
    work = torch.int64 if not floating else flat.dtype if flat.dtype == torch.float64 else torch.float32
    rows = [
        _torch_chunk(torch, flat[at : at + CHUNK_ELEMENTS].to(work)) for at in range(0, flat.numel(), CHUNK_ELEMENTS)
    ]
    return _together(rows, floating)


def _torch_chunk(torch: Any, chunk: Any) -> tuple[int, int, int, Any, Any, float]:
    """Return the number of NaNs, infinities and finite elements; the minimum, maximum and sum of the finite ones."""
    nan = inf = 0
    if chunk.is_floating_point():
        nan, inf = int(chunk.isnan().sum()), int(chunk.isinf().sum())
        if nan or inf:
            chunk = chunk[torch.isfinite(chunk)]
    if chunk.numel() == 0:
        return nan, inf, 0, None, None, 0.0
    least, greatest = chunk.min().item(), chunk.max().item()
    return nan, inf, chunk.numel(), least, greatest, float(chunk.sum(dtype=torch.float64))


def _together(rows: list[tuple[int, int, int, Any, Any, float]], floating: bool) -> Facts:
    found: Facts = {"nan": sum(row[0] for row in rows), "inf": sum(row[1] for row in rows)}
    finite = [row for row in rows if row[2]]
    if finite:
        kind = float if floating else int
        found["min"] = _number(kind(min(row[3] for row in finite)))
        found["max"] = _number(kind(max(row[4] for row in finite)))
        found["mean"] = _number(math.fsum(row[5] for row in finite) / sum(row[2] for row in finite))
    return found


# numpy, and MindSpore through it


def _mindspore_tensor(value: Any) -> Facts:
    facts: Facts = {
        "kind": "tensor",
        "type": type(value).__name__,
        "shape": [int(size) for size in value.shape],
        "dtype": str(value.dtype).lower(),
        "device": str(getattr(value, "device", "") or ""),
    }
    try:
        return {**_array(value.asnumpy(), type(value).__name__), **facts}
    except Exception as error:
        return _noted(facts, f"could not be read: {type(error).__name__}")


def _array(value: Any, kind: str) -> Facts:
    numpy: Any = sys.modules["numpy"]
    array = numpy.asarray(value)
    facts: Facts = {
        "kind": "tensor",
        "type": kind,
        "shape": [int(size) for size in array.shape],
        "dtype": array.dtype.name,
        "device": "cpu",
        "count": int(array.size),
    }
    if array.dtype.hasobject:
        return _noted(facts, "holds Python objects")
    if array.size == 0:
        return _noted(facts, "has no elements")
    flat = (
        array.reshape(-1)
        if array.flags.c_contiguous or array.size <= COUNTED_ELEMENTS
        else array.flat[:SAMPLE_ELEMENTS]
    )
    step = 1 if array.nbytes <= DIGESTED_BYTES else max(1, flat.size // SAMPLE_ELEMENTS)
    facts["digest"] = _digest(numpy.ascontiguousarray(flat[::step]).view(numpy.uint8))
    if array.size > COUNTED_ELEMENTS:
        return _noted(facts, "is too large for a summary")
    return {**facts, **_array_figures(numpy, flat)}


def _array_figures(numpy: Any, flat: Any) -> Facts:
    if flat.dtype.kind == "c":
        return {"nan": int(numpy.isnan(flat).sum()), "inf": int(numpy.isinf(flat).sum()), "note": COMPLEX}
    if flat.dtype.kind == "V" and flat.dtype.names is None:  # bfloat16 and the like, of ml_dtypes
        flat = flat.astype(numpy.float32)
    elif flat.dtype.kind not in "biuf":
        return {"note": "is not numeric"}
    floating = flat.dtype.kind == "f"
    nan = int(numpy.isnan(flat).sum()) if floating else 0
    inf = int(numpy.isinf(flat).sum()) if floating else 0
    finite = flat[numpy.isfinite(flat)] if nan or inf else flat
    row = (nan, inf, 0, None, None, 0.0)
    if finite.size:
        total = float(finite.sum(dtype=numpy.float64))
        row = (nan, inf, int(finite.size), finite.min().item(), finite.max().item(), total)
    found = _together([row], floating)
    if flat.size == 1:
        found["value"] = _number(flat[0].item())
    return found
