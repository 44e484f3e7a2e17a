"""Start an agent in a process that did not call breakranks: the entry point of injected code."""

from __future__ import annotations

import linecache
from typing import Any

from breakranks.rank import api, rank_identity, run_dir
from breakranks.rank.rank_identity import RankIdentity
from breakranks.rank.unload import Unload


def answer(given: dict[str, Any], finder: Any) -> dict[str, Any]:
    """Start the agent, unless one runs here. ``finder`` provided these modules; None: the job imported them itself."""
    leaving = Unload(finder, frozenset(linecache.cache))
    guest = dict(given.get("guest") or {})
    before = api.present()
    if before is not None:
        before.expect(guest)
        reply = _reply(before)
        leaving.unload()
        return reply
    try:
        agent = api.attach(_identity(given), leaving, guest)
    except run_dir.NotPrivateFolder as error:
        refused = str(error)
    except Exception as error:  # a full disk, no threads left
        refused = f"the agent cannot start: {error!r}"
    else:
        return _reply(agent)
    leaving.unload()
    return {"refused": refused}


def _reply(agent: Any) -> dict[str, Any]:
    if agent.leaving:
        return {"leaving": True}
    return {"path": f"{agent.path}/{agent.pid}.sock", "job": agent.me.job, "attached": agent.attached}


def _identity(given: dict[str, Any]) -> RankIdentity:
    """Return the identity of this process; for a process that no launcher started as a rank, ``given`` has it."""
    me = rank_identity.who()
    if given.get("named"):
        return me._replace(world=max(me.world, int(given["world"])))
    rank, world = int(given["rank"]), int(given["world"])
    return me._replace(
        rank=rank, world=world, job=str(given["job"]), hosts=False, helper=bool(given.get("helper")), local_rank=rank
    )
