"""Token blocks for training: the batch of a step is a pure function of the seed and the step.

Nothing has to be saved to resume: a run that continues at step n sees the batches it would have seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from jaxtyping import Int


class Batches:
    """Documents packed into blocks of T tokens, reshuffled every epoch.

    In every epoch the documents are joined in a new order, rotated by a random offset (so that the cuts fall elsewhere
    than in the last epoch), cut into blocks, and the blocks are dealt out in random order.

    Attributes:
        batch_size, length: B and T of a batch.
        steps_per_epoch: batches in which every block is seen once.
    """

    def __init__(self, documents: Sequence[np.ndarray], batch_size: int, length: int, seed: int) -> None:
        num_tokens = sum(map(len, documents))
        self.batch_size, self.length = batch_size, length
        self.steps_per_epoch = num_tokens // (batch_size * length)
        if self.steps_per_epoch == 0:
            raise ValueError(
                f"the documents hold {num_tokens} tokens, fewer than one batch of {batch_size} x {length}; "
                "give more text or a smaller batch"
            )
        self._documents, self._seed = documents, seed
        self._epoch = lru_cache(maxsize=1)(self._build_epoch)

    def __getitem__(self, step: int) -> Int[np.ndarray, "B T"]:
        """The batch of `step` (0, 1, ...), int32."""
        epoch, position = divmod(step, self.steps_per_epoch)
        return self._epoch(epoch)[position]

    def _build_epoch(self, epoch: int) -> Int[np.ndarray, "n B T"]:
        rng = np.random.default_rng([self._seed, epoch])
        stream = np.concatenate([self._documents[i] for i in rng.permutation(len(self._documents))])
        stream = np.roll(stream, rng.integers(len(stream)))
        num_blocks = self.steps_per_epoch * self.batch_size
        blocks = stream[: num_blocks * self.length].reshape(num_blocks, self.length)
        return rng.permutation(blocks).reshape(self.steps_per_epoch, self.batch_size, self.length)


def consecutive_blocks(documents: Sequence[np.ndarray], batch_size: int, length: int) -> Int[np.ndarray, "n B T"]:
    """The documents in order, cut into blocks without shuffling, for evaluation; a last partial batch is dropped.

    Raises:
        ValueError: the documents do not fill one batch.
    """
    stream = np.concatenate(documents)
    num_batches = len(stream) // (batch_size * length)
    if num_batches == 0:
        raise ValueError(
            f"the held-out documents hold {len(stream)} tokens, fewer than one batch of {batch_size} x {length}; "
            "give more text or a smaller batch"
        )
    return stream[: num_batches * batch_size * length].reshape(num_batches, batch_size, length)
