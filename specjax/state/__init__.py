"""What a sequence carries. Commit and rollback live here and nowhere else."""

from specjax.state.hybrid import SequenceState, SequenceWindow, commit, with_later_caches
from specjax.state.kv import KVCache
from specjax.state.kv_types import KV_TYPES, KVTypes
from specjax.state.recurrent import RollbackStrategy
from specjax.state.shift import Shift

__all__ = [
    "KV_TYPES",
    "KVCache",
    "KVTypes",
    "RollbackStrategy",
    "SequenceState",
    "SequenceWindow",
    "Shift",
    "commit",
    "with_later_caches",
]
