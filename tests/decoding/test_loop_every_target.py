"""Drafters that read layers draft for targets of every family: random ones, fitted to the target's widths.

Their drafts are scripted, so that all accept counts come up. The text is what the target itself says is best.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scripted import ragged_prompts, run, script
from test_loop_file_drafters import ScriptedDFlash, ScriptedEagle3
from tiny_models import DENSE, MOE, make_params

import checkpoints
from specjax.decoding.decoder import Decoder
from specjax.models import registry
from specjax.models.drafters import dflash, eagle3
from specjax.models.drafters.fit import usual_layers
from specjax.models.protocol import Drafter, FeatureRequest, Params, Target
from specjax.models.qwen3_5 import Qwen35Target
from specjax.state import KVTypes, SequenceState

FIXTURES = Path(__file__).parents[1] / "fixtures"
LENGTHS = (2, 20)
MAX_TOKENS = 24
DRAFTS = 3
SIZES: dict[str, Any] = {"mlp_width": 32, "num_heads": 2, "num_kv_heads": 1, "head_width": 16}


def of_file(name: str) -> Callable[[], tuple[Target, Params]]:
    def load() -> tuple[Target, Params]:
        loaded = checkpoints.load(FIXTURES / name, registry.FAMILIES, need_tokenizer=False)
        return registry.build(loaded.config)[0], dict(loaded.params)

    return load


TARGETS = {
    "qwen3_5 dense": lambda: (Qwen35Target(DENSE), make_params(DENSE)),
    "qwen3_5 moe": lambda: (Qwen35Target(MOE), make_params(MOE)),
    "qwen3_next": of_file("qwen3_next/tied/hf"),
    "gemma4": of_file("gemma4/edge/model.gguf"),
    "step3_5": of_file("step3_5/flash/model.gguf"),
    "glm4_moe": of_file("glm4_moe/air/model.gguf"),
    "dense": of_file("dense/llama/model.gguf"),
}


def layers_of(target: Target) -> tuple[int, ...]:
    """The usual layers; of targets that are too small for them the first, and what leaves the last one."""
    usual = usual_layers(target.num_layers)
    return usual if min(usual) >= 0 else (0, 1, target.num_layers)


def random_eagle3(target: Target) -> tuple[Drafter, Params]:
    """With an output head for a third of the tokens."""
    config = eagle3.Eagle3Config(
        vocab_size=target.vocab_size,
        draft_vocab_size=target.vocab_size // 3,
        target_width=target.width,
        target_layers=layers_of(target),
        width=target.width,
        **SIZES,
    )
    return ScriptedEagle3(target, config), eagle3.init_params(config, jax.random.key(0))


def random_dflash(target: Target) -> tuple[Drafter, Params]:
    """With a sliding layer, and the target's table and head."""
    config = dflash.DFlashConfig(
        vocab_size=target.vocab_size,
        draft_vocab_size=target.vocab_size,
        block_size=6,
        mask_token=1,
        target_layers=layers_of(target),
        width=target.width,
        rope_width=16,
        windows=(None, 6),
        causal=(False, True),
        **SIZES,
    )
    return ScriptedDFlash(target, config), dflash.init_params(config, jax.random.key(0))


def best_tokens(target: Target, params: Params, texts: list[list[int]]) -> np.ndarray:
    """What the target says is best after each token of each text, in one pass over them; [B, T]."""
    tokens = np.zeros((len(texts), max(map(len, texts))), np.int32)
    for row, text in enumerate(texts):
        tokens[row, : len(text)] = text
    return np.asarray(best_of(target, params, tokens))


@partial(jax.jit, static_argnames="target")
def best_of(target: Target, params: Params, tokens: jax.Array) -> jax.Array:
    batch, longest = tokens.shape
    layers = target.init_layers(batch, longest, rows=1, chunk=longest, rollback="replay", kv_types=KVTypes())
    state = SequenceState(layers, None, jnp.zeros((batch,), jnp.int32))
    output, _ = target.extend(params, tokens, jnp.full((batch,), longest), state, request=FeatureRequest(), rows="all")
    return jnp.argmax(output.logits, axis=-1)


def slow(family: str, make: Callable) -> Any:
    return pytest.param(family, make, marks=pytest.mark.slow)


USUAL = ("gemma4",)
"""Families that are not left to the slow tests: the one whose layers differ most from each other."""

OF_EACH = {family: (random_eagle3, random_dflash)[:: 1 if index % 2 else -1] for index, family in enumerate(TARGETS)}


@pytest.mark.parametrize(
    ("family", "make"),
    [
        case
        for family, (first, second) in OF_EACH.items()
        for case in ((family, first) if family in USUAL else slow(family, first), slow(family, second))
    ],
)
def test_a_random_drafter_changes_no_token(family: str, make: Callable[[Target], tuple[Drafter, Params]]) -> None:
    target, params = TARGETS[family]()
    own, more = make(target)
    decoder = Decoder(target, own, "greedy", DRAFTS)
    prompts = ragged_prompts(target.config, LENGTHS, seed=1)  # type: ignore[attr-defined]
    drafted: list[list[int]] = [[] for _ in prompts]
    # The first run learns what the target says, with drafts that are the drafter's own; the second accepts them.
    for correct in (-1, np.random.default_rng(0).integers(0, DRAFTS + 1, (len(prompts), 384))):
        scripted = script({**params, **more}, prompts, drafted, correct)
        result = run(decoder, scripted, prompts, MAX_TOKENS)
        drafted = result.tokens
        texts = [prompt + tokens for prompt, tokens in zip(prompts, drafted, strict=True)]
        best = best_tokens(target, params, texts)
        for row, (prompt, tokens) in enumerate(zip(prompts, drafted, strict=True)):
            assert tokens == best[row, len(prompt) - 1 : len(texts[row]) - 1].tolist()
    assert result.rounds.n_accepted.max() == DRAFTS
