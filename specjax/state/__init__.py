"""What a sequence carries. Commit and rollback live here and nowhere else."""

from specjax.state.hybrid import SequenceState, SequenceWindow, commit, with_later_caches
from specjax.state.kv import KVCache
from specjax.state.recurrent import RollbackStrategy

__all__ = ["KVCache", "RollbackStrategy", "SequenceState", "SequenceWindow", "commit", "with_later_caches"]
