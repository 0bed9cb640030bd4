"""How often each token occurs in text, or in what a model says: which tokens a drafter should be able to draft."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Int

from checkpoints import TextTokenizer
from specjax.errors import SpecjaxError
from specjax.evaluation import Evaluation
from specjax.evaluation.prompts import PromptLine
from specjax.runtime.model import Model
from specjax.runtime.options import GenerateOptions

PORTION = 1 << 20
"""Characters of text that are encoded at once, up to the end of a line."""


class TokenCounts:
    """Counts that grow.

    Attributes:
        counts: [V], of each token.
    """

    def __init__(self, vocab_size: int) -> None:
        self.counts: Int[np.ndarray, "V"] = np.zeros(vocab_size, np.int64)

    @property
    def total(self) -> int:
        """How many tokens have been counted."""
        return int(self.counts.sum())

    def add(self, tokens: Iterable[int]) -> None:
        """Count some tokens, all of them within the vocabulary."""
        self.counts += np.bincount(np.fromiter(tokens, np.int64), minlength=len(self.counts))

    def share_of(self, tokens: Sequence[int]) -> float:
        """How much of what was counted these tokens are, from 0 to 1; each of them is given once."""
        return float(self.counts[list(tokens)].sum() / max(self.total, 1))

    def read(
        self, tokenizer: TextTokenizer, paths: Sequence[Path], progress: Callable[[int, int], None] | None = None
    ) -> None:
        """Count the tokens of files, in which control tokens are nothing but text.

        Args:
            tokenizer: of the model.
            paths: UTF-8 text.
            progress: called with bytes done and bytes in all.

        Raises:
            SpecjaxError: a file is not UTF-8.
            OSError: a file cannot be read.
        """
        sizes, done = [path.stat().st_size for path in paths], 0
        for path, size in zip(paths, sizes, strict=True):
            read = 0
            try:
                for portion in _portions(path):
                    self.add(tokenizer.encode(portion, special=False))
                    read += len(portion.encode())
                    if progress is not None:
                        progress(done + read, sum(sizes))
            except UnicodeDecodeError as error:
                raise SpecjaxError(f"{path} is not UTF-8 text: {error}") from error
            done += size

    def generate(
        self,
        model: Model,
        prompts: Sequence[PromptLine],
        options: GenerateOptions,
        *,
        rows: int,
        most: int,
        progress: Callable[[int, int, int], None] | None = None,
    ) -> None:
        """Count the tokens that a model continues prompts with.

        Args:
            model, prompts, options, rows: see `Evaluation`.
            most: no further prompt is waited for once so many tokens have been counted.
            progress: called with prompts done, prompts in all, and tokens counted.

        Raises:
            SpecjaxError: as for `Evaluation`.
        """
        tokens = 0
        for done, result in enumerate(Evaluation(model, prompts, options, rows).run(), start=1):
            self.add(result.tokens)
            tokens += len(result.tokens)
            if progress is not None:
                progress(done, len(prompts), tokens)
            if tokens >= most:
                break


def _portions(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8", newline="") as file:
        while portion := file.read(PORTION):
            yield portion + file.readline()
