"""Which tokens are fed to score many texts: what texts share at their start is fed once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from specjax.runtime.memory import common_prefix
from specjax.runtime.prefixes import LEAST_SHARED

Tokens = tuple[int, ...]


@dataclass(frozen=True)
class Leaf:
    """A continuation to be scored.

    Attributes:
        index: the text's number.
        stem: the number of its stem in the batch.
        fed: the tokens to feed after the stem: the prompt's last one, and all of the continuation but its last one.
        targets: the continuation: what the model should say after each of them.
    """

    index: int
    stem: int
    fed: Tokens = field(repr=False)
    targets: Tokens = field(repr=False)


@dataclass(frozen=True)
class Batch:
    """Texts that are scored together.

    Attributes:
        stems: the different prompts of these texts, without the cluster's trunk and without their last token.
        leaves: the texts.
    """

    stems: tuple[Tokens, ...] = field(repr=False)
    leaves: tuple[Leaf, ...] = field(repr=False)


@dataclass(frozen=True)
class Cluster:
    """Texts whose prompts start alike.

    Attributes:
        trunk: the tokens that all prompts start with; none if it is not worth while.
        batches: the texts.
        longest: the most tokens that one of the texts feeds.
    """

    trunk: Tokens = field(repr=False)
    batches: tuple[Batch, ...] = field(repr=False)
    longest: int

    @property
    def num_fed(self) -> int:
        """Tokens that are fed for all texts of the cluster; stems that two batches in a row have are fed once."""
        runs = (stems for stems, _ in groupby(batch.stems for batch in self.batches))
        stems = sum(len(stem) for run in runs for stem in run)
        return len(self.trunk) + stems + sum(len(leaf.fed) for batch in self.batches for leaf in batch.leaves)


def plan(prompts: Sequence[Sequence[int]], continuations: Sequence[Sequence[int]], rows: int) -> list[Cluster]:
    """How to score each continuation after its prompt.

    Equal prompts of a batch are fed once, and what the different prompts of a cluster have in common at their start,
    such as the examples of a few-shot task, is fed once for all of them.

    Args:
        prompts: token ids, none empty.
        continuations: token ids, one list for each prompt.
        rows: the most texts of a batch.
    """
    texts: dict[Tokens, list[int]] = {}
    for index, prompt in enumerate(prompts):
        texts.setdefault(tuple(prompt[:-1]), []).append(index)
    starts = Counter(stem[:LEAST_SHARED] for stem in texts if len(stem) >= LEAST_SHARED)
    clusters: dict[Tokens, list[Tokens]] = {}
    for stem in sorted(texts, key=len, reverse=True):  # rows of like length waste least
        start = stem[:LEAST_SHARED]
        clusters.setdefault(start if starts[start] > 1 else (), []).append(stem)
    planned = []
    for start, stems in clusters.items():
        trunk = stems[0][: common_prefix(min(stems), max(stems))] if start else ()
        groups = (sorted(texts[stem], key=lambda index: -len(continuations[index])) for stem in stems)
        batches = tuple(_batch(batch, prompts, continuations, cut=len(trunk)) for batch in _batches(groups, rows))
        longest = max(len(prompts[i]) + len(continuations[i]) - 1 for stem in stems for i in texts[stem])
        planned.append(Cluster(trunk, batches, longest))
    return planned


def _batches(groups: Iterator[list[int]], rows: int) -> Iterator[list[int]]:
    """Lists of at most so many texts. A group is divided only if it is larger than that."""
    batch: list[int] = []
    for group in groups:
        if batch and len(batch) + len(group) > rows:
            yield batch
            batch = []
        batch = batch + group
        while len(batch) > rows:
            yield batch[:rows]
            batch = batch[rows:]
    if batch:
        yield batch


def _batch(
    indices: Sequence[int], prompts: Sequence[Sequence[int]], continuations: Sequence[Sequence[int]], cut: int
) -> Batch:
    stems = list(dict.fromkeys(tuple(prompts[index][cut:-1]) for index in indices))
    leaves = (
        Leaf(
            index,
            stems.index(tuple(prompts[index][cut:-1])),
            fed=(prompts[index][-1], *continuations[index])[:-1],
            targets=tuple(continuations[index]),
        )
        for index in indices
    )
    return Batch(tuple(stems), tuple(leaves))
