"""The newest collective operation of this process, from PyTorch's flight recorder. It is asked for when a run hangs: the rank
that has not begun the operation in which the others wait has left first.
"""

from __future__ import annotations

import json
import sys


def describe_newest():
    """Returns the event that names the newest collective of this process; its number is 0 if none is recorded."""
    newest = {}
    try:
        entries = _entries(sys.modules["torch._C._distributed_c10d"])
        # A group of its own counts for itself, so only the operations of the group that all ranks are in compare.
        ours = [entry for entry in entries if not entry.get("is_p2p") and _group(entry) == "0"]
        newest = max(ours, key=lambda entry: entry.get("collective_seq_id") or 0, default={})
    except Exception:
        # A version of PyTorch without a recorder, or one that is switched off.
        pass
    return {
        "event": "collective",
        "number": int(newest.get("collective_seq_id") or 0),
        "name": str(newest.get("profiling_name") or ""),
        "done": bool(newest.get("retired")),
    }


def _entries(module):
    for name in ("_dump_nccl_trace_json", "_dump_fr_trace_json"):
        dump = getattr(module, name, None)
        entries = json.loads(dump()).get("entries") if dump is not None else None
        if entries:
            return entries
    return []


def _group(entry):
    group = entry.get("process_group")
    return str(group[0]) if isinstance(group, (list, tuple)) and group else str(group)
