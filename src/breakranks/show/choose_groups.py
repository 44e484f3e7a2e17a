"""The groups that ``--group`` and ``--rank`` choose."""

from __future__ import annotations

from collections import Counter

from breakranks.errors import UsageError
from breakranks.explain.collectives import call_facts
from breakranks.explain.collectives.collective_progress import CollectiveProgress
from breakranks.explain.collectives.group_progress import GroupProgress
from breakranks.rankset import RankSet
from breakranks.show.call_names import group_name
from breakranks.show.wording.value_wording import group as group_text

_MAX_LISTED = 12


def choose_groups(
    progress: CollectiveProgress, groups: list[GroupProgress], name: str | None, ranks: RankSet | None
) -> list[GroupProgress]:
    """Return the groups with this name that have some of these ranks; raise UsageError for an unknown name."""
    if ranks is not None:
        groups = [group for group in groups if group.members & ranks]
    if name is None:
        return groups
    chosen = [group for group in groups if name.strip() in _names(progress, group)] or _by_members(groups, name)
    if not chosen:
        counts = Counter(group_name(progress.group(group.group)) for group in groups)
        listed = [f"{known} ({number} groups)" if number > 1 else known for known, number in counts.items()]
        more = f" and {len(listed) - _MAX_LISTED} more" if len(listed) > _MAX_LISTED else ""
        raise UsageError(
            f"no group is called {name!r}",
            f"The groups are: {', '.join(listed[:_MAX_LISTED])}{more}." if listed else "There is no group.",
        )
    return chosen


def _names(progress: CollectiveProgress, chosen: GroupProgress) -> tuple[str, ...]:
    """Return every name of a group, including that of `why`: ``mesh_tp (0-7)``."""
    group = progress.group(chosen.group)
    world = ("world", "the world group") if group.description == "default_pg" else ()
    return (group.name, group.description, group_text(call_facts.group_name(progress, chosen.group)), *world)


def _by_members(groups: list[GroupProgress], text: str) -> list[GroupProgress]:
    try:
        members = RankSet.parse(text)
    except (UsageError, ValueError):
        return []
    return [group for group in groups if members and group.members == members]
