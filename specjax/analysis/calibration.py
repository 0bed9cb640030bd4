"""Importance matrices: which columns of a model's matrices count, measured on text.

What is collected is what llama.cpp's `tools/imatrix` collects: for every matrix in a layer of the trunk the sum of the
squares of each column of its input, for experts from the rows that were sent to them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from checkpoints.mapping.rule import Rule
from checkpoints.mapping.table import RuleTable
from checkpoints.mapping.tree import flatten, is_matrix, unflatten
from checkpoints.quantization.imatrix import Entry, ImportanceMatrix
from specjax.decoding.decoder import Decoder
from specjax.errors import PromptError
from specjax.layers.observed import Observed
from specjax.mesh.hosts import fetched
from specjax.mesh.plan import Cut
from specjax.mesh.shards import MODEL, devices_of, lying, on_shards
from specjax.models.protocol import FeatureRequest, Params, Target
from specjax.models.registry import FAMILIES
from specjax.runtime.model import Model
from specjax.runtime.plan import plan_of_rules

Statistics = dict[str, tuple[Array, Array]]
"""Parameter path -> sums of squares [E, K] and rows summed [E]."""


def collect_importance(
    model: Model,
    text: str | Sequence[int],
    *,
    chunk_size: int = 512,
    max_chunks: int | None = None,
    datasets: Sequence[str] = (),
    progress: Callable[[int, int], None] | None = None,
) -> ImportanceMatrix:
    """Run the model over text and measure the inputs of its matrices.

    Args:
        model: the model; its head is not run.
        text: text, in which control tokens are nothing but text, or token ids. Each chunk is read by itself, and begins
            with the bos token if the vocabulary asks for one.
        chunk_size, max_chunks: tokens of a chunk, and chunks at most; what is left over at the end is not read.
        datasets: names of the text, for the file.
        progress: called with chunks done and chunks in all.

    Raises:
        PromptError: there is no tokenizer for text, the text is shorter than one chunk, or a chunk longer than the
            model's context.
    """
    if not 0 < chunk_size <= model.target.context_length:
        raise PromptError(f"chunks of {chunk_size} tokens; the model reads 1 to {model.target.context_length}")
    tokens = _tokens(model, text)
    count = len(tokens) // chunk_size
    if count == 0:
        raise PromptError(f"the text has {len(tokens)} tokens; {chunk_size} are needed at least, for one chunk")
    count = count if max_chunks is None else min(count, max_chunks)
    chunks = np.asarray(tokens[: count * chunk_size], np.int32).reshape(count, chunk_size)
    if model.tokenizer is not None:
        leading = model.tokenizer.vocabulary.leading[:chunk_size]
        chunks[:, : len(leading)] = leading
    table = _table(model.config)
    rules, mesh = _observed(table), devices_of(model.params)
    paths = frozenset(path for rule in rules for path in rule.paths)
    parts = 1 if mesh is None else mesh.shape[MODEL]
    cuts = {} if mesh is None else plan_of_rules(mesh, model.config, _table).cuts
    sums: dict[str, np.ndarray] = {}
    rows: dict[str, np.ndarray] = {}
    for done, chunk in enumerate(chunks, start=1):
        for path, found in _statistics(model.target, paths, model.params, chunk[None]).items():
            squares, seen = _of_whole(cuts.get(path), parts, *(fetched(each).astype(np.float64) for each in found))
            sums[path], rows[path] = sums.get(path, 0) + squares, rows.get(path, 0) + seen
        if progress is not None:
            progress(done, count)
    entries: dict[str, Entry] = {}
    for rule in rules:
        if sums.keys() >= set(rule.paths):
            entries |= _entries(rule, sums, rows, table.shapes)
    return ImportanceMatrix(entries, tuple(datasets), count, chunk_size)


def _tokens(model: Model, text: str | Sequence[int]) -> list[int]:
    if not isinstance(text, str):
        return list(text)
    if model.tokenizer is None:
        raise PromptError(f"{model.path} has no usable tokenizer; give token ids")
    return [*model.tokenizer.vocabulary.leading, *model.tokenizer.encode(text, special=False)]


@partial(jax.jit, static_argnames=("target", "paths"))
def _statistics(target: Target, paths: frozenset[str], params: Params, tokens: Int[Array, "1 T"]) -> Statistics:
    """On a mesh, those of all parts of the model one after the other."""

    def run(parts: int, params: Params, tokens: Array) -> Statistics:
        found: Statistics = {}

        def record(path: str, sums: Array, rows: Array) -> None:
            before = found.get(path)
            found[path] = (sums, rows) if before is None else (before[0] + sums, before[1] + rows)

        flat, own = flatten(params), target.shard(parts)
        observed = {path: Observed(leaf, path, record) if path in paths else leaf for path, leaf in flat.items()}
        state = Decoder(own, None, max_drafts=0).init_state(1, tokens.shape[1], chunk=tokens.shape[1])
        n_valid = jnp.full(1, tokens.shape[1], jnp.int32)
        own.extend(unflatten(observed), tokens, n_valid, state, request=FeatureRequest(final_hidden=True), rows="none")
        return found

    return on_shards(run, params, tokens, out=lambda *_: lying(MODEL))


def _of_whole(cut: Cut | None, parts: int, sums: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The statistics of a matrix from those of its parts. A part that has all columns has seen all inputs."""
    of_parts = np.split(sums, parts), np.split(rows, parts)
    if cut is None or cut.axis == -2:
        return of_parts[0][0], of_parts[1][0]
    if cut.axis == -1:
        return cut.joined(of_parts[0], -1), of_parts[1][0]
    return cut.joined(of_parts[0], 0), cut.joined(of_parts[1], 0)  # experts


def _table(config: Any) -> RuleTable:
    return FAMILIES.of_config(config).gguf.rules(config, ())


def _observed(table: RuleTable) -> list[Rule]:
    """Rules of matrices in layers of the trunk, those that make packed tensors of a GGUF."""
    return [
        rule
        for rule in table.rules
        if all(name.startswith("blk.") for name in rule.sources)
        and rule.paths
        and all(path.startswith("target.") and is_matrix(path, table.shapes[path]) for path in rule.paths)
    ]


def _entries(
    rule: Rule, sums: Mapping[str, Any], rows: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, Entry]:
    """The statistics by tensor, with the columns in the order that the tensor has."""
    spread = []
    for path in rule.paths:
        shape = shapes[path]
        spread.append(np.broadcast_to(sums[path][..., None, :] if len(shape) == 3 else sums[path], shape))
    tensors = zip(rule.sources, rule.backward(spread), strict=True)
    return {
        name: Entry(np.atleast_2d(tensor[..., 0, :]).astype(np.float32), rows[rule.paths[0]].astype(np.float32))
        for name, tensor in tensors
    }
