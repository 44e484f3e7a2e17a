"""What tests of one process on this machine share."""

from __future__ import annotations

import pytest

from support.targets import THIS, Interpreter


@pytest.fixture
def interpreter() -> Interpreter:
    """The Python of the programs that a test starts; ``@on_every_python`` makes it each of them in turn."""
    return THIS
