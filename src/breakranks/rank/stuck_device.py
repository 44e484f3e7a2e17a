"""Avoids waiting for a stuck device: a thread that reads its values would wait in C++ as long as the device is stuck.

An event recorded behind the queued work tells whether it is: a device that works reaches it within moments.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

PATIENCE_SECONDS = 1.0  # for a device to finish its queued work
_AGAIN_SECONDS = 0.05  # the same, if a device was stuck at the last check
_known = threading.local()
_last: frozenset[int] = frozenset()


class DeviceBusy(Exception):
    """An evaluation would wait for a stuck device."""

    def __init__(self, device: object) -> None:
        super().__init__(f"{device} is still busy with earlier work, perhaps a collective; its values were not read")


@contextlib.contextmanager
def not_waiting() -> Iterator[None]:
    """Raise DeviceBusy when this thread touches a tensor of a stuck device."""
    with contextlib.ExitStack() as stack:
        try:
            _known.stuck = _stuck()
            if _known.stuck:
                for mode in _modes():
                    stack.enter_context(mode(_known.stuck))
        except Exception:
            pass  # a version of torch without this interface
        try:
            yield
        finally:
            _known.stuck = None


def is_stuck(tensor: Any) -> bool:
    """Whether reading a tensor would wait for a stuck device."""
    if tensor.device.type != "cuda":
        return False
    known = getattr(_known, "stuck", None)
    return tensor.device.index in (known if known is not None else _stuck())


def _stuck() -> frozenset[int]:
    """Return the devices of this process that do not finish their queued work."""
    torch: Any = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return frozenset()
    events = {}
    for device in range(cuda.device_count()):
        if torch._C._cuda_hasPrimaryContext(device):
            events[device] = cuda.Event()
            events[device].record(cuda.current_stream(device))
    global _last
    until = time.monotonic() + (PATIENCE_SECONDS if not _last else _AGAIN_SECONDS)
    while events and time.monotonic() < until:
        events = {device: event for device, event in events.items() if not event.query()}
        time.sleep(0.002 if events else 0)
    _last = frozenset(events)
    return _last


@functools.cache
def _modes() -> tuple[Any, ...]:
    """The first mode gets all operations of torch in this thread, except showing a tensor, which the second gets."""
    dispatch: Any = sys.modules["torch.utils._python_dispatch"].TorchDispatchMode
    function: Any = sys.modules["torch.overrides"].TorchFunctionMode
    torch: Any = sys.modules["torch"]

    def waits(value: Any, stuck: frozenset[int]) -> bool:
        return isinstance(value, torch.Tensor) and value.device.type == "cuda" and value.device.index in stuck

    class NotWaiting(dispatch):  # type: ignore[misc]
        def __init__(self, stuck: frozenset[int]) -> None:
            super().__init__()
            self.stuck = stuck

        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return False  # as in collective_guard

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            for value in (*args, *(kwargs or {}).values()):
                if waits(value, self.stuck):
                    raise DeviceBusy(value.device)
            return func(*args, **(kwargs or {}))

    class NotShowing(function):  # type: ignore[misc]
        def __init__(self, stuck: frozenset[int]) -> None:
            super().__init__()
            self.stuck = stuck

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.Tensor.__repr__ and waits(args[0], self.stuck):
                tensor = args[0]
                busy = DeviceBusy(tensor.device)
                return f"<{type(tensor).__name__} {tuple(tensor.shape)} {tensor.dtype}: {busy}>"
            return func(*args, **(kwargs or {}))

    return NotWaiting, NotShowing
