"""A job that was recorded: in a snapshot file, or in a folder of flight recorder dumps."""

from __future__ import annotations

from breakranks.errors import NoJobError
from breakranks.jobs.targets import DumpFolder, SnapshotFile
from breakranks.snapshot import snapshot_file
from breakranks.snapshot.model import Snapshot


def load_recorded(target: DumpFolder | SnapshotFile, key: str | None) -> Snapshot:
    """Return the snapshot of a target; raise NoJobError if a file is of another job than ``key``."""
    if isinstance(target, DumpFolder):
        from breakranks.observe.dump_snapshot import load

        return load(target.path)
    snapshot = snapshot_file.load(target.path)
    if key is not None and not snapshot.job.key.startswith(key):
        raise NoJobError(f"{target.path} is not of job {key!r}", f"It is of job {snapshot.job.key}; omit --job.")
    return snapshot
