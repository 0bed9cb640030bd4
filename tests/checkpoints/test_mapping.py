"""Every tensor is accounted for, at full size too, and loading needs little more memory than its result."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from tiny_checkpoints import make_config, make_params, make_tokenizer

import checkpoints
from checkpoints.mapping.rule import Split, copies, fitting
from checkpoints.mapping.table import RuleTable
from checkpoints.mapping.tree import flatten, unflatten
from specjax.models.qwen3_5 import MoEConfig, hybrid_layer_types
from specjax.models.qwen3_5.gguf import gguf_rules
from specjax.models.qwen3_5.hf import hf_rules
from specjax.models.registry import FAMILIES


def released(moe: bool) -> Any:
    """The widths of the released models, with two periods of layers."""
    common = {
        "vocab_size": 248320,
        "layer_types": hybrid_layer_types(8),
        "head_width": 256,
        "rope_width": 64,
        "rope_sections": (11, 11, 10, 0),
        "linear_key_heads": 16,
        "linear_key_width": 128,
        "linear_value_width": 128,
    }
    if moe:
        sizes = {"width": 2048, "num_heads": 16, "num_kv_heads": 2, "linear_value_heads": 32}
        return replace(make_config(moe=True, **common, **sizes), moe=MoEConfig(256, 8, 512, 512))
    sizes = {"width": 5120, "num_heads": 24, "num_kv_heads": 4, "linear_value_heads": 48, "mlp_width": 17408}
    return make_config(**common, **sizes)


@pytest.mark.parametrize("rules", [gguf_rules, hf_rules])
@pytest.mark.parametrize("moe", [False, True])
def test_rules_cover_the_released_sizes_and_name_no_tensor_twice(rules: Callable[..., RuleTable], moe: bool) -> None:
    table = rules(released(moe))
    sources = [name for rule in table.rules for name in rule.sources]
    assert len(sources) == len(set(sources))
    assert sorted(path for rule in table.rules for path in rule.paths) == sorted(table.shapes)


def test_a_table_that_forgets_a_parameter_cannot_be_made() -> None:
    with pytest.raises(AssertionError, match=r"without a rule \['b'\].*no parameter \['c'\].*two rules \['a'\]"):
        RuleTable((*copies({"x": "a", "z": "c"}), *copies({"y": "a"})), {}, {"a": (1,), "b": (1,)})


def test_the_file_decides_between_forms_of_a_tensor_and_the_model_which_rules_there_are() -> None:
    apart, fused = copies({"gate": "g", "up": "u"}), Split(("both",), ("g", "u"), axis=0)
    everything = (*apart, fused, *copies({"bias": "b"}))
    for names, expected in (((), apart), (("both",), (fused,)), (("gate", "up"), apart), (("up",), apart)):
        assert fitting(everything, {"g", "u"}, names) == expected
    assert fitting(everything, {"b"}, ("both",)) == copies({"bias": "b"})
    assert [rule.within("blk.0.", "layers_0.") for rule in fitting(everything, {"b"}, ())] == [
        *copies({"blk.0.bias": "layers_0.b"})
    ]


def test_flatten_and_unflatten_are_inverse() -> None:
    tree = {"a": {"b": 1, "c": {"d": 2}}, "e": 3}
    assert flatten(tree) == {"a.b": 1, "a.c.d": 2, "e": 3}
    assert unflatten(flatten(tree)) == tree


@pytest.mark.parametrize("kind", ["F32", pytest.param("BF16", marks=pytest.mark.slow), "Q8_0", "hf"])
def test_peak_host_memory_is_the_result_and_at_most_one_tensor(kind: str, tmp_path: Path) -> None:
    config = make_config(vocab_size=8192, width=256, mlp_width=2048)
    params = make_params(config)
    if kind == "hf":
        checkpoints.write_hf(tmp_path / "model", FAMILIES, config, params, make_tokenizer())
    else:
        checkpoints.write_gguf(tmp_path / "model", FAMILIES, config, params, make_tokenizer(), weights=kind)  # type: ignore[arg-type]
    sizes = [leaf.nbytes for leaf in jax.tree.leaves(params)]
    checkpoints.describe(tmp_path / "model", FAMILIES)  # what is cached at the first call is not counted
    tracemalloc.start()
    try:
        loaded = checkpoints.load(tmp_path / "model", FAMILIES)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(loaded.params)) == sum(sizes)
    assert peak <= sum(sizes) + max(sizes), f"peak {peak / 1e6:.1f} MB, result {sum(sizes) / 1e6:.1f} MB"


def test_loaded_arrays_do_not_alias_each_other_or_the_file(tmp_path: Path) -> None:
    config = make_config()
    path = tmp_path / "model.gguf"
    checkpoints.write_gguf(path, FAMILIES, config, make_params(config), make_tokenizer())
    first, second = checkpoints.load(path, FAMILIES).params, checkpoints.load(path, FAMILIES).params
    path.write_bytes(b"\0" * path.stat().st_size)
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_array_equal(a, b)
    addresses = [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves((first, second))]
    assert len(set(addresses)) == len(addresses)
