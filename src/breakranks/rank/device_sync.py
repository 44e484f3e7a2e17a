"""Not waiting for a device that is stuck: a thread of ours that did would wait with it, in C++, for as long as it is.

Whether it is, tells a mark that is put behind what is queued there: a device that works comes to it within a moment.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

PATIENCE_SECONDS = 1.0  # seconds for a device to finish what it is at
_AGAIN_SECONDS = 0.05  # and for one that was stuck when it was last looked at
_known = threading.local()
_last: frozenset[int] = frozenset()


class DeviceBusy(Exception):
    """Something that was asked for would wait for a device that is stuck."""

    def __init__(self, device: object) -> None:
        super().__init__(
            f"{device} is still busy with earlier work, perhaps a collective; its values are not waited for"
        )


@contextlib.contextmanager
def not_waiting() -> Iterator[None]:
    """What is evaluated here, in this thread, touches no tensor of a device that is stuck: it raises Busy."""
    with contextlib.ExitStack() as stack:
        try:
            _known.stuck = _stuck()
            if _known.stuck:
                for mode in _modes():
                    stack.enter_context(mode(_known.stuck))
        except Exception:
            pass  # a torch that has no such thing
        try:
            yield
        finally:
            _known.stuck = None


def is_stuck(tensor: Any) -> bool:
    """Whether reading a tensor would wait for a device that is stuck."""
    if tensor.device.type != "cuda":
        return False
    known = getattr(_known, "stuck", None)
    return tensor.device.index in (known if known is not None else _stuck())


def _stuck() -> frozenset[int]:
    """The devices of this process that do not come to an end of what is queued on them."""
    torch: Any = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return frozenset()
    marks = {}
    for device in range(cuda.device_count()):
        if torch._C._cuda_hasPrimaryContext(device):
            marks[device] = cuda.Event()
            marks[device].record(cuda.current_stream(device))
    global _last
    until = time.monotonic() + (PATIENCE_SECONDS if not _last else _AGAIN_SECONDS)
    while marks and time.monotonic() < until:
        marks = {device: mark for device, mark in marks.items() if not mark.query()}
        time.sleep(0.002 if marks else 0)
    _last = frozenset(marks)
    return _last


@functools.cache
def _modes() -> tuple[Any, ...]:
    """Operations of torch in this thread come by the first; what shows a tensor goes around it, and by the second."""
    dispatch: Any = sys.modules["torch.utils._python_dispatch"].TorchDispatchMode
    function: Any = sys.modules["torch.overrides"].TorchFunctionMode
    torch: Any = sys.modules["torch"]

    def waits(one: Any, stuck: frozenset[int]) -> bool:
        return isinstance(one, torch.Tensor) and one.device.type == "cuda" and one.device.index in stuck

    class NotWaiting(dispatch):  # type: ignore[misc]
        def __init__(self, stuck: frozenset[int]) -> None:
            super().__init__()
            self.stuck = stuck

        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return False  # see guard

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            for one in (*args, *(kwargs or {}).values()):
                if waits(one, self.stuck):
                    raise DeviceBusy(one.device)
            return func(*args, **(kwargs or {}))

    class NotShowing(function):  # type: ignore[misc]
        def __init__(self, stuck: frozenset[int]) -> None:
            super().__init__()
            self.stuck = stuck

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.Tensor.__repr__ and waits(args[0], self.stuck):
                one = args[0]
                return f"<{type(one).__name__} {tuple(one.shape)} {one.dtype}: {DeviceBusy(one.device)}>"
            return func(*args, **(kwargs or {}))

    return NotWaiting, NotShowing
