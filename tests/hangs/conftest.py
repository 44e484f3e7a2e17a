"""Which live jobs run: one of each kind and launcher and all healthy ones, or with `--all` every one."""

from __future__ import annotations

import pytest

from .case import Case


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("every_job"):
        return
    left_out = [item for item in items if _only_with_all(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def _only_with_all(item: pytest.Item) -> bool:
    if item.path.name != "test_live.py" or item.path.parent.name != "hangs":
        return False
    case = item.callspec.params.get("case") if hasattr(item, "callspec") else None
    return isinstance(case, Case) and not case.in_every_run
