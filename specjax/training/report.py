"""The figures of a trained model on all held-out text, for its model card."""

from __future__ import annotations

import math
from typing import Any

import jax

from specjax.training.batches import consecutive_blocks
from specjax.training.corpus import Corpus
from specjax.training.run_folder import RunFolder
from specjax.training.trainer import evaluate
from specjax.training.vocabulary import encode_documents


def held_out_report(folder: RunFolder, corpus: Corpus, trainable: dict) -> dict[str, Any]:
    """Measure every whole block of held-out text.

    Args:
        folder: the run, with its config and vocabulary.
        corpus: the text that the run was made from.
        trainable: parameters in the optimizer's form.

    Returns:
        parameters, tokens and bytes of the text, the trunk's loss in nats per token and in bits per byte, and for
        each draft step its loss and how often its most likely token is the trunk's.
    """
    config, recipe = folder.read_config(), folder.read_recipe()
    assert recipe is not None
    documents = encode_documents(folder.read_tokenizer(), corpus.held_out)
    blocks = consecutive_blocks(documents, recipe.batch_size, recipe.length)
    measured = evaluate(config, recipe, trainable, blocks, mtp_sequences=recipe.batch_size)
    num_tokens, num_bytes = sum(map(len, documents)), corpus.provenance.held_out_bytes
    loss = measured.pop("loss")
    return {
        "parameters": sum(x.size for x in jax.tree.leaves(trainable)),
        "training_tokens": recipe.steps * recipe.tokens_per_step,
        "held_out_tokens": num_tokens,
        "held_out_bytes": num_bytes,
        "nats_per_token": loss,
        "bits_per_byte": loss * num_tokens / num_bytes / math.log(2),
        **measured,
    }
