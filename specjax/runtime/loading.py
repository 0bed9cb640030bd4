"""From a file to a model."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any, cast

import checkpoints
from pallas_kernels.matmul import Activations
from specjax.errors import SpecjaxError
from specjax.models import registry
from specjax.models.protocol import ModelConfig
from specjax.runtime import drafters
from specjax.runtime.drafters import DrafterSource
from specjax.runtime.model import Model
from specjax.runtime.placement import Placement


def bundled_model() -> Path:
    """The path of the trained model that comes with the package.

    Raises:
        FileNotFoundError: the package was built without it.
    """
    folder = Path(str(resources.files(checkpoints))) / "demo"
    files = sorted(folder.glob("*.gguf"))
    if not files:
        raise FileNotFoundError(f"no bundled model in {folder}; train one with `specjax train` or name a file")
    return files[0]


def load(
    path: str | Path | None = None,
    *,
    drafter: DrafterSource | None = None,
    dtype: Any = "float32",
    packed: Activations | None = "a16",
    place: Sequence[str] = (),
    need_tokenizer: bool = False,
    progress: Any = None,
) -> Model:
    """Load a model: a GGUF file, or a directory with Hugging Face safetensors; default: the bundled model.

    Args:
        path: FILE.gguf or a directory with config.json.
        drafter: what drafts, if not the head in the file itself: another model's file or directory, "ngram", or an
            `specjax.NGram`.
        dtype: of matrices that are not quantized, or do not stay so ("float32", "bfloat16", "float16"); norms and
            recurrent parameters are float32.
        packed: quantized matrices stay as the file packs them. Where products are of integers, the other factor is
            rounded to 16 bits ("a16") or to 8 ("a8": faster, and as llama.cpp does). None: decode them to `dtype`.
        place: where parameters go that are not to lie on the default device: rules "REGEX=PLACE", of which the first
            that matches a parameter's path decides, such as "mtp=pinned_host"; see `specjax.runtime.placement`.
        need_tokenizer: whether an absent or unusable tokenizer is an error; prompts must be token ids otherwise.
        progress: called with bytes done and bytes in all.

    Raises:
        checkpoints.CheckpointError: what is wrong with the file, and how to mend it.
        SpecjaxError: the drafter does not fit the model, or a rule of `place` is wrong or matches nothing.

    Warns:
        checkpoints.MissingMTPWarning: the MTP head is declared but absent; the model decodes plainly.
        checkpoints.DecodedWarning: some types cannot stay packed, and are decoded.
    """
    opened = checkpoints.open_checkpoint(bundled_model() if path is None else path)
    if registry.is_assistant(opened.config):
        raise SpecjaxError(
            f"{opened.path} is an assistant, which only drafts: load the model it was made for, and give this file as"
            " its drafter"
        )
    other = None if drafter is None else drafters.open_drafter(drafter)
    placement = Placement.parse(
        place, [*opened.parameter_paths, *([] if other is None else drafters.added_paths(other))]
    )
    settings = {"dtype": dtype, "packed": packed, "progress": progress, "put": placement.put}
    checkpoint = opened.load(need_tokenizer=need_tokenizer, **settings)
    target, built_in = registry.build(checkpoint.config)
    params = dict(checkpoint.params)
    if other is not None:
        built_in, added = drafters.attach(other, checkpoint, target, **settings)
        params |= added
    return Model(
        config=cast("ModelConfig", checkpoint.config),
        params=params,
        tokenizer=checkpoint.tokenizer,
        target=target,
        drafter=built_in,
        path=checkpoint.path,
    )
