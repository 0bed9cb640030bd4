"""What targets and drafters owe the loop: the features that were asked for, rows that are needed, and to be values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import relative_rms

import checkpoints
from specjax.decoding.decoder import Decoder
from specjax.models import registry
from specjax.models.drafters.draft_model import DraftModel
from specjax.models.drafters.ngram import NGram
from specjax.models.protocol import Drafter, FeatureRequest, Features, Params, Target
from specjax.state import KVTypes, SequenceState

FIXTURES = Path(__file__).parents[1] / "fixtures"
FAMILIES = ("qwen3_5/dense/hf", "qwen3_5/moe/hf", "gemma4/edge/hf", "step3_5/flash/hf", "dense/qwen3/hf")
FAMILIES += ("qwen3_next/tied/hf", "glm4_moe/large/hf")
BATCH, TOKENS = 2, 5
WIDE = 2**16
N_VALID = np.array([TOKENS, 3], np.int32)


@cache
def loaded(family: str) -> tuple[Target, Drafter | None, Params]:
    checkpoint = checkpoints.load(FIXTURES / family, registry.FAMILIES)
    return *registry.build(checkpoint.config), dict(checkpoint.params)


def empty(target: Target) -> SequenceState:
    layers = target.init_layers(BATCH, 16, rows=TOKENS, chunk=TOKENS, rollback="replay", kv_types=KVTypes())
    return SequenceState(layers, None, jnp.zeros((BATCH,), jnp.int32))


def tokens_of(target: Target) -> np.ndarray:
    return np.random.default_rng(0).integers(0, target.vocab_size, (BATCH, TOKENS)).astype(np.int32)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_target_returns_the_features_that_were_asked_for_and_nothing_else(family: str) -> None:
    target, _, params = loaded(family)
    last = target.config.num_layers - 1
    request = FeatureRequest(layer_inputs=(last, 0))

    def feed(params: Params) -> tuple[Any, ...]:
        """What `extend` returns, and what went into the two layers."""
        went_in: dict[str, jax.Array] = {}

        def listen(call: Callable, args: tuple, kwargs: dict, context: Any) -> Any:
            if context.method_name == "__call__" and context.module.name in ("layers_0", f"layers_{last}"):
                went_in[context.module.name] = args[0]
            return call(*args, **kwargs)

        with nn.intercept_methods(listen):
            some, _ = target.extend(params, tokens_of(target), N_VALID, empty(target), request=request, rows="none")
        assert some.logits is None
        assert some.features.final_hidden is None
        return some.features.layer_inputs, (went_in[f"layers_{last}"], went_in["layers_0"])

    def verified(request: FeatureRequest) -> Features:
        verify = partial(target.verify, params, tokens_of(target), N_VALID, empty(target), request=request)
        return jax.eval_shape(lambda: verify()[0]).features

    # Of the program alone: what is returned are the very values that go into the layers.
    before_last, before_first, into_last, into_first = jax.make_jaxpr(feed)(params).jaxpr.outvars
    assert before_last is into_last
    assert before_first is into_first
    assert before_last is not before_first
    hidden = verified(FeatureRequest(final_hidden=True))
    assert hidden.final_hidden.shape == (BATCH, TOKENS, target.config.width)
    assert hidden.layer_inputs == ()
    assert verified(FeatureRequest()) == Features()


def sizes(jaxpr: Any) -> Iterator[int]:
    """How many elements each value within a program has."""
    for equation in jaxpr.eqns:
        yield from (variable.aval.size for variable in equation.outvars)
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            yield from sizes(inner)


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_made_for_the_rows_that_are_needed_alone(family: str) -> None:
    """With a vocabulary larger than everything else, rows of logits are told from other values by their size."""
    narrow, _, params = loaded(family)
    target = registry.build(replace(narrow.config, vocab_size=WIDE))[0]
    shapes = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct([WIDE if n == narrow.vocab_size else n for n in leaf.shape], leaf.dtype),
        params,
    )
    for rows, most in (("all", TOKENS), ("last", 1), ("none", 0)):
        feed = partial(target.extend, request=FeatureRequest(), rows=rows)
        program = jax.make_jaxpr(feed)(shapes, tokens_of(narrow), N_VALID, empty(target))
        made = [size for size in sizes(program.jaxpr) if BATCH * WIDE <= size <= BATCH * TOKENS * WIDE]
        assert max(made, default=0) == most * BATCH * WIDE, rows


def test_the_last_row_is_that_of_the_last_valid_token() -> None:
    target, _, params = loaded("dense/qwen3/hf")
    feed = partial(target.extend, params, tokens_of(target), N_VALID, empty(target))
    every, last = jax.jit(lambda: [feed(rows=rows)[0].logits for rows in ("all", "last")])()
    assert last.shape == (BATCH, 1, target.vocab_size)
    assert relative_rms(last[:, 0], every[np.arange(BATCH), N_VALID - 1]) < 1e-5


def test_features_of_layers_that_do_not_exist_are_refused() -> None:
    target, _, params = loaded(FAMILIES[0])
    for index in (-1, target.num_layers + 1):
        with pytest.raises(ValueError, match=rf"the layers \[{index}\] are asked for; this target has layers 0 to"):
            target.verify(
                params, tokens_of(target), N_VALID, empty(target), request=FeatureRequest(layer_inputs=(index,))
            )


@pytest.mark.parametrize("family", FAMILIES)
def test_targets_and_drafters_are_hashable_values(family: str) -> None:
    target, built_in, _ = loaded(family)
    drafters = [NGram(), DraftModel(target, target.vocab_size), *([] if built_in is None else [built_in])]
    if family.startswith("gemma4"):
        config = checkpoints.load(FIXTURES / "gemma4/edge/assistant", registry.FAMILIES, need_tokenizer=False).config
        drafters.append(registry.from_file(config).attach(target))
    for value in (target, *drafters):
        assert replace(value) == value
        assert hash(replace(value)) == hash(value)
        with pytest.raises(AttributeError):
            value.config = None  # type: ignore[union-attr]
    for drafter in drafters:
        assert hash(Decoder(target, drafter)) == hash(Decoder(replace(target), replace(drafter)))


def test_every_family_says_what_is_built_of_it_and_has_names_of_its_own() -> None:
    families = registry.FAMILIES.members
    for family in families:
        decodes = family.role == "target"
        assert (family.target is not None, family.file_drafter is None) == (decodes, decodes)
    for names in ([f.gguf.names for f in families], [f.hf.names for f in families]):
        assert len(set(sum(names, ()))) == len(sum(names, ()))
    assert len({family.config_type for family in families}) == len(families)
