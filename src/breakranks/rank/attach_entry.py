"""An agent in a process that nobody prepared: how it begins there."""

from __future__ import annotations

import linecache
from typing import Any

from breakranks.rank import api, rank_identity, run_dir
from breakranks.rank.rank_identity import RankIdentity
from breakranks.rank.unload import Unload


def answer(given: dict[str, Any], finder: Any) -> dict[str, Any]:
    """Start the agent, unless one is here. ``finder`` gave out these modules; None: they are the job's own import."""
    leaving = Unload(finder, frozenset(linecache.cache))
    guest = dict(given.get("guest") or {})
    before = api.present()
    if before is not None:
        before.expect(guest)
        told = _told(before)
        leaving.unload()
        return told
    try:
        agent = api.attach(_who(given), leaving, guest)
    except run_dir.NotPrivateFolder as error:
        refused = str(error)
    except Exception as error:  # a full disk, no threads left
        refused = f"no agent can be started there: {error!r}"
    else:
        return _told(agent)
    leaving.unload()
    return {"refused": refused}


def _told(agent: Any) -> dict[str, Any]:
    if agent.leaving:
        return {"leaving": True}
    return {"path": f"{agent.path}/{agent.pid}.sock", "job": agent.me.job, "attached": agent.attached}


def _who(given: dict[str, Any]) -> RankIdentity:
    """Who this process is; whoever attaches may know better, where it was started as nobody's rank."""
    me = rank_identity.who()
    if given.get("named"):
        return me._replace(world=max(me.world, int(given["world"])))
    rank, world = int(given["rank"]), int(given["world"])
    return me._replace(
        rank=rank, world=world, job=str(given["job"]), hosts=False, helper=bool(given.get("helper")), local_rank=rank
    )
