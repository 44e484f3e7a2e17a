"""Compare an answer of `why --json` with the table, for recorded and for live jobs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from .case import Case, ranks_of

Answer = dict[str, Any]


def check(case: Case, status: int, answer: Answer, folder: str, files: Mapping[str, str]) -> None:
    """Fail if it differs. `folder` is that of the job, `files` the content of the files that the table mentions."""
    if case.kinds:
        _check_broken(case, status, answer, folder, files)
    else:
        _check_healthy(case, status, answer)


def _check_broken(case: Case, status: int, answer: Answer, folder: str, files: Mapping[str, str]) -> None:
    def holds(text: str, word: str) -> bool:
        if word.startswith("@ready."):  # a pid, which may be of one digit
            return re.search(rf"\bprocess {files[word[1:]]}\b", text) is not None
        return (files[word[1:]] if word.startswith("@") else word.replace("{folder}", folder)) in text

    assert status == 1, told(answer)
    verdict = answer["verdict"]
    assert verdict["kind"] in case.kinds, told(answer)
    _check_ranks(case, answer)
    if case.function:
        assert verdict["where"]["function"].rpartition(".")[2] in case.function, told(answer)
    if case.sure:
        assert verdict["confidence"] != "guess", told(answer)
    for word in case.mentions:
        assert holds(verdict["summary"], word), told(answer)
    for word in case.proof:
        assert any(holds(line, word) for line in verdict["evidence"]), told(answer)
    if case.certain:
        assert verdict["confidence"] == "certain", told(answer)
    assert verdict["evidence"], "a verdict comes with its proof"
    assert verdict["next"], "a verdict must have a next step"
    assert answer["findings"][0] == verdict


def _check_ranks(case: Case, answer: Answer) -> None:
    verdict = answer["verdict"]
    culprits, victims = ranks_of(verdict["culprits"]), ranks_of(verdict["victims"])
    assert not culprits & victims, told(answer)
    if case.culprits is not None:
        assert culprits in map(ranks_of, case.culprits), told(answer)
    if case.victims is not None:
        assert victims in map(ranks_of, case.victims), told(answer)
    if case.involved is not None:
        assert culprits | victims == ranks_of(case.involved), told(answer)


def _check_healthy(case: Case, status: int, answer: Answer) -> None:
    assert status == 0, told(answer)
    assert answer["verdict"] is None
    assert ranks_of(answer["job"]["ranks"]) == case.starts - ranks_of(case.gone)


def told(answer: Answer) -> str:
    """The whole answer as a string: pytest shortens other values."""
    return json.dumps(answer, indent=1)
