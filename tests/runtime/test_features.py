"""Hidden states of texts: what others compute, whatever the pieces and the span."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import relative_rms

import specjax
from specjax.decoding.decoder import Decoder
from specjax.models.protocol import FeatureRequest

FIXTURES = Path(__file__).parents[1] / "fixtures"
TOLERANCE = 1e-5


@cache
def model(name: str) -> specjax.Model:
    return specjax.load(FIXTURES / name)


def test_the_residual_stream_is_that_of_transformers() -> None:
    with np.load(FIXTURES / "drafter_target/transformers.npz") as arrays:
        want = dict(arrays)
    target = model("drafter_target/hf")
    layers = list(range(len(want["residual"])))
    inside = target.features(want["tokens"], layers[::-1], final_hidden=False)
    assert list(inside.layer_inputs) == layers == list(range(target.target.num_layers + 1))
    assert inside.final_hidden is None
    for layer, stream in inside.layer_inputs.items():
        assert stream.dtype == np.float32
        assert relative_rms(stream, want["residual"][layer]) < TOLERANCE


@pytest.mark.parametrize(
    ("name", "file", "hidden"),
    [
        ("qwen3_5/dense", "transformers.npz", "hidden"),
        ("gemma4/edge", "transformers.npz", "hidden"),
        ("step3_5/flash", "reference.npz", "hidden"),
    ],
)
def test_final_hidden_states_are_those_of_others_and_lead_to_the_logits(name: str, file: str, hidden: str) -> None:
    with np.load(FIXTURES / name / file) as arrays:
        want = dict(arrays)
    loaded = model(f"{name}/hf")
    target, params = loaded.target, loaded.params
    last = target.num_layers
    inside = loaded.features(want["prompt"], [0, last])
    assert inside.final_hidden is not None
    assert relative_rms(inside.final_hidden, want[hidden]) < TOLERANCE
    rows = want["logit_rows"]
    logits = target.unembed(params, target.norm(params, jnp.asarray(inside.layer_inputs[last][rows])))
    assert relative_rms(logits, want["logits"]) < TOLERANCE
    embedded = target.embed(params, jnp.asarray(want["prompt"]))
    np.testing.assert_allclose(inside.layer_inputs[0], embedded, rtol=1e-6)


def test_pieces_and_spans_change_nothing() -> None:
    loaded, tokens = model("qwen3_5/dense/hf"), np.random.default_rng(0).integers(0, 300, 290).tolist()
    decoder, request = Decoder(loaded.target, None, max_drafts=0), FeatureRequest(True, (2,))
    state, array = decoder.init_state(1, len(tokens), chunk=len(tokens)), jnp.asarray([tokens])
    n_valid = jnp.asarray([len(tokens)])
    extend = jax.jit(partial(loaded.target.extend, request=request, rows="none"))
    output, _ = extend(loaded.params, array, n_valid, state)
    for start, stop in ((0, None), (270, 280), (-40, None), (10, 258), (256, 257)):
        inside = loaded.features(tokens, [2], start=start, stop=stop)
        assert inside.tokens == tuple(tokens[start:stop])
        assert tokens[inside.start] == inside.tokens[0]
        assert inside.final_hidden is not None
        assert output.features.final_hidden is not None
        assert relative_rms(inside.final_hidden, output.features.final_hidden[0, start:stop]) < TOLERANCE
        assert relative_rms(inside.layer_inputs[2], output.features.layer_inputs[0][0, start:stop]) < TOLERANCE


def test_what_cannot_be_had_is_refused() -> None:
    loaded = model("qwen3_5/dense/hf")
    with pytest.raises(ValueError, match=r"no layers \[-1, 5\].*layers 0 to 3, and 4 stands for the output"):
        loaded.features([1, 2], [5, 4, -1])
    for layers in (2, "all", [1.5]):
        with pytest.raises(ValueError, match=r"layers is .*; give a list of whole numbers"):
            loaded.features([1, 2], layers)
    with pytest.raises(ValueError, match="nothing is asked for"):
        loaded.features([1, 2], final_hidden=False)
    with pytest.raises(ValueError, match=r"start=2 and stop=None name no token of a text of 2"):
        loaded.features([1, 2], start=2)
    with pytest.raises(specjax.PromptError, match="is empty"):
        loaded.features([])
    assert repr(loaded.features([1, 2, 3], [1], start=1)) == (
        "TextFeatures(tokens 1 to 2: inputs of layers [1], final_hidden)"
    )
