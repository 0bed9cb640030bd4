"""Writing a model as a Hugging Face directory: config.json, safetensors, tokenizer files."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from checkpoints.atomic import write_text
from checkpoints.family import Config, Families
from checkpoints.mapping.rope_formula import with_formula
from checkpoints.mapping.table import Progress
from checkpoints.mapping.tree import flatten
from checkpoints.safetensors.file import DTYPES, TYPE_OF_DTYPE
from checkpoints.safetensors.stream import INDEX, write_shards
from checkpoints.source import TensorInfo
from checkpoints.tokenizers import hf as tokenizer_hf
from checkpoints.tokenizers.tokenizer import TextTokenizer

_SHARD_BYTES = 5 * 10**9
_SHARD_NAME = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors")


def write_hf(
    directory: str | Path,
    families: Families,
    config: Config,
    params: Mapping[str, Any],
    tokenizer: TextTokenizer | None = None,
    *,
    dtype: DTypeLike = np.float32,
    shard_bytes: int = _SHARD_BYTES,
    progress: Progress | None = None,
) -> None:
    """Write a model as the text-only class that transformers loads with `AutoModelForCausalLM`.

    Each file appears under its name only when it is complete, and config.json last of all. The config, weights and
    vocabulary of an earlier model in the directory are removed, the config first: if writing is interrupted, there is
    no model.

    Args:
        directory: made if it is not there.
        families: the known ones.
        config, params: the model.
        tokenizer: written as tokenizer.json if given.
        dtype: of every tensor but those that hold integers, whose rules say their type.
        shard_bytes: a file is closed before it grows beyond this; one tensor at least goes into each.
        progress: called with bytes written and bytes in all.

    Raises:
        ConfigError: config.json cannot express the model; nothing is written then.
        TensorMismatchError: `params` do not fit `config`; nothing is written then.
    """
    directory, family, item = Path(directory), families.of_config(config), np.dtype(dtype)
    config = with_formula(family, config, lambda path: np.asarray(flatten(params)[path]))
    table = family.hf.rules(config, ())
    integers, tensors = table.integer_sources, list(table.unload(params))
    kinds = {name: integers.get(name, TYPE_OF_DTYPE[item]) for name, _, _ in tensors}
    entries = [
        TensorInfo(name, shape, kinds[name], int(np.prod(shape)) * np.dtype(DTYPES[kinds[name]]).itemsize)
        for name, shape, _ in tensors
    ]
    data = (make().astype(DTYPES[kinds[name]]) for name, _, make in tensors)
    for stale in ("config.json", INDEX, *tokenizer_hf.FILES):
        (directory / stale).unlink(missing_ok=True)
    files = write_shards(directory, entries, data, shard_bytes=shard_bytes, progress=progress)
    for old in directory.glob("model*.safetensors"):
        if _SHARD_NAME.fullmatch(old.name) and old.name not in files:
            old.unlink()
    if tokenizer is not None:
        tokenizer_hf.save(tokenizer, directory)
    write_text(directory / "config.json", json.dumps({**family.hf.write_config(config), "dtype": item.name}, indent=2))
