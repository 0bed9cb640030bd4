"""What a sequence carries. Commit and rollback live here and nowhere else."""

from specjax.state.hybrid import SequenceState, SequenceWindow, commit, with_later_caches
from specjax.state.kv import KVCache
from specjax.state.recurrent import RollbackStrategy
from specjax.state.shift import Shift

__all__ = ["KVCache", "RollbackStrategy", "SequenceState", "SequenceWindow", "Shift", "commit", "with_later_caches"]
