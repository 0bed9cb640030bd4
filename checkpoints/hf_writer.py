"""Writing a model as a Hugging Face directory: config.json, safetensors, tokenizer files."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike
from safetensors.numpy import save_file

from checkpoints import tokenizer_hf
from checkpoints.atomic import replaced, write_text
from checkpoints.families import Config, family_of_config
from checkpoints.mapping import Progress
from checkpoints.tokenizer import TextTokenizer

_SHARD_BYTES = 5 * 10**9
_SHARD_NAME = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors")


def write_hf(
    directory: str | Path,
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
        config, params: the model.
        tokenizer: written as tokenizer.json if given.
        dtype: of every tensor but those that hold integers, which are int64.
        shard_bytes: a file is closed before it grows beyond this; one tensor at least goes into each.
        progress: called with bytes written and bytes in all.

    Raises:
        TensorMismatchError: `params` do not fit `config`; nothing is written then.
    """
    directory, family, item = Path(directory), family_of_config(config), np.dtype(dtype)
    table = family.hf_rules(config, ())
    tensors, integers = list(table.unload(params)), table.integer_sources
    kinds = {name: np.dtype(np.int64) if name in integers else item for name, _, _ in tensors}
    sizes = {name: int(np.prod(shape)) * kinds[name].itemsize for name, shape, _ in tensors}
    shards: list[list[str]] = [[]]
    for name in sizes:
        if shards[-1] and sum(sizes[n] for n in shards[-1]) + sizes[name] > shard_bytes:
            shards.append([])
        shards[-1].append(name)
    index = directory / "model.safetensors.index.json"
    for old in (directory / "config.json", index, *(directory / name for name in tokenizer_hf.FILES)):
        old.unlink(missing_ok=True)
    make = {name: function for name, _, function in tensors}
    weight_map: dict[str, str] = {}
    done = 0
    for i, names in enumerate(shards, start=1):
        file = "model.safetensors" if len(shards) == 1 else f"model-{i:05d}-of-{len(shards):05d}.safetensors"
        with replaced(directory / file) as temporary:
            save_file({name: make[name]().astype(kinds[name]) for name in names}, temporary, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(names, file)
        done += sum(sizes[name] for name in names)
        if progress is not None:
            progress(done, sum(sizes.values()))
    if len(shards) > 1:
        write_text(index, json.dumps({"metadata": {"total_size": sum(sizes.values())}, "weight_map": weight_map}))
    for old in directory.glob("model*.safetensors"):
        if _SHARD_NAME.fullmatch(old.name) and old.name not in weight_map.values():
            old.unlink()
    if tokenizer is not None:
        tokenizer_hf.save(tokenizer, directory)
    write_text(directory / "config.json", json.dumps({**family.config_to_hf(config), "dtype": item.name}, indent=2))
