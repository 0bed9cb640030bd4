"""What a sequence carries. Commit and rollback live here and nowhere else."""

from specjax.state.content import Content
from specjax.state.hybrid import SequenceState, SequenceWindow, commit
from specjax.state.kv import KVCache
from specjax.state.kv_types import KV_TYPES, KVTypes
from specjax.state.part import LayerWindow, Part, Ring, Window, contents_of_layers
from specjax.state.recurrent import RollbackStrategy
from specjax.state.rows import keep_rows, put_rows, take_rows
from specjax.state.shift import Cut, Shift

__all__ = [
    "KV_TYPES",
    "Content",
    "Cut",
    "KVCache",
    "KVTypes",
    "LayerWindow",
    "Part",
    "Ring",
    "RollbackStrategy",
    "SequenceState",
    "SequenceWindow",
    "Shift",
    "Window",
    "commit",
    "contents_of_layers",
    "keep_rows",
    "put_rows",
    "take_rows",
]
