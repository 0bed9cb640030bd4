"""A trained model as a GGUF that this project and llama.cpp run."""

from __future__ import annotations

from pathlib import Path

import jax
from tokenizers import Tokenizer

from checkpoints import TextTokenizer, write_gguf
from checkpoints.gguf.writer import WeightType
from checkpoints.tokenizers.hf import from_backend
from specjax.models.registry import FAMILIES
from specjax.training.checkpointing import Checkpoints, TrainState
from specjax.training.families.registry import family_of
from specjax.training.run_folder import RunFolder
from specjax.training.trainer import initial_state, model_params
from specjax.training.vocabulary import end_of_text


def load_state(folder: RunFolder) -> TrainState:
    """The run's newest checkpoint.

    Raises:
        FileNotFoundError: the folder holds no run, or no checkpoint yet.
    """
    config, recipe = folder.read_config(), folder.read_recipe()
    assert recipe is not None
    with Checkpoints(folder.checkpoints) as checkpoints:
        if checkpoints.latest_step is None:
            raise FileNotFoundError(f"{folder.checkpoints} holds no checkpoint yet; train for some steps first")
        return checkpoints.restore(jax.eval_shape(lambda: initial_state(config, recipe)))


def load_params(folder: RunFolder) -> dict:
    """The parameters of the run's newest checkpoint, as the model runs them; raises what `load_state` does."""
    return model_params(folder.read_config(), load_state(folder).params)


def text_tokenizer(tokenizer: Tokenizer) -> TextTokenizer:
    """The run's vocabulary with its one special token in every role that a file names."""
    end = end_of_text(tokenizer)
    return from_backend(tokenizer, {"bos": end, "eos": end, "padding": end})


def export_gguf(folder: RunFolder, path: Path, weights: WeightType) -> list[Path]:
    """Write the run's newest checkpoint, with its vocabulary and the licence of its text. Returns the files' paths."""
    config, tokenizer = folder.read_config(), text_tokenizer(folder.read_tokenizer())
    family = family_of(config)
    paths = []
    for suffix, file_config, params in family.files(config, load_params(folder)):
        paths.append(path.with_stem(path.stem + suffix))
        write_gguf(
            paths[-1],
            FAMILIES,
            file_config,
            params,
            tokenizer,
            weights=weights,
            metadata={
                "general.name": f"specjax demo{suffix}",
                "general.description": family.description,
                "general.license": "PSF-2.0",
                "general.languages": ["en"],
                "general.tags": ["python", "speculative-decoding"],
            },
        )
    return paths
