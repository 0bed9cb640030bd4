"""The choice of implementations for a whole program: by a variable, or around calls; never silently another."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import dequantize, prepare
from test_quant_formats import random_blocks

import pallas_kernels
from pallas_kernels import dispatch, hadamard, matmul, override, using
from pallas_kernels.dispatch import Implementation, Operation, choose
from pallas_kernels.table import ANYWHERE, TABLE

OP = Operation(
    "op",
    (
        Implementation("native", min, frozenset({"cpu"})),
        Implementation("xla_wide", max, ANYWHERE, lambda dims: "T is over 4" if dims["T"] > 4 else None),
        Implementation("xla_named", sum),
    ),
)


@pytest.fixture
def variable(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.delenv(override.VARIABLE, raising=False)
    return monkeypatch


def test_xla_leaves_those_in_plain_xla(variable: pytest.MonkeyPatch) -> None:
    assert choose(OP, None, {"T": 4}, "cpu").name == "native"
    variable.setenv(override.VARIABLE, "xla")
    assert choose(OP, None, {"T": 4}, "cpu").name == "xla_wide"
    with pytest.raises(ValueError, match=r"(?s)no implementation fits.*native .*SPECJAX_KERNELS=xla.*T is over 4"):
        choose(OP, None, {"T": 5}, "cpu")


def test_what_a_call_names_goes_before_the_variable(variable: pytest.MonkeyPatch) -> None:
    variable.setenv(override.VARIABLE, "xla")
    assert choose(OP, "native", {"T": 4}, "cpu").name == "native"


def test_a_pair_names_an_implementation_of_one_operation(variable: pytest.MonkeyPatch) -> None:
    variable.setenv(override.VARIABLE, "hadamard=reference, gated_delta.verify=xla_recurrent")
    assert re.search(r"reference +chosen \(SPECJAX_KERNELS=hadamard=ref", hadamard.explain(N=64, platform="cpu"))
    text = pallas_kernels.explain("gated_delta.verify", platform="cpu", T=4, Hk=2, Hv=2, Dk=64, Dv=64)
    assert re.search(r"xla_recurrent +chosen \(SPECJAX_KERNELS=", text)
    assert re.search(r"xla_wy +passed over: SPECJAX_KERNELS=", text)
    assert choose(OP, None, {"T": 4}, "cpu").name == "native"


def test_a_named_implementation_that_does_not_fit_is_an_error(variable: pytest.MonkeyPatch) -> None:
    def refuse(dims: dispatch.Dims) -> str:
        return "never fits"

    table = (Implementation("xla_matmul", min, ANYWHERE), Implementation("reference", max, unfit=refuse))
    variable.setenv(override.VARIABLE, "hadamard=reference")
    with pytest.raises(ValueError, match=r"(?s)no implementation fits.*reference +passed over: never fits"):
        choose(Operation("hadamard", table), None, {"N": 64}, "cpu")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("fast", r"'fast' is not understood; accepted: auto, xla, measure, or OPERATION=IMPL,\.\.\."),
        ("hadamart=reference", r"operation 'hadamart' is not known; known: cache_attention, .*gated_delta\.verify"),
        ("hadamard=cuda", r"hadamard has no implementation 'cuda'; known: .*xla_matmul.*reference"),
        ("hadamard=reference+cuda", r"hadamard has no implementation 'cuda'; known: .*xla_matmul.*reference"),
        ("hadamard=reference+", r"'hadamard=reference\+' is not understood"),
        ("hadamard=reference,hadamard=xla_matmul", r"hadamard is given twice, reference and xla_matmul"),
    ],
)
def test_an_unknown_choice_lists_the_known_ones(variable: pytest.MonkeyPatch, spec: str, message: str) -> None:
    variable.setenv(override.VARIABLE, spec)
    with pytest.raises(ValueError, match=rf"SPECJAX_KERNELS={re.escape(spec)}: {message}"):
        hadamard.walsh_hadamard(jnp.zeros((1, 2)))
    with pytest.raises(ValueError, match=message), using(spec):
        pass


def test_functions_jitted_before_are_traced_anew_inside_using(variable: pytest.MonkeyPatch) -> None:
    traced = []

    @jax.jit
    def run(x: jax.Array) -> jax.Array:
        traced.append(choose(OP, None, {"T": 4}, "cpu").name)
        return x

    for _ in range(2):
        run(1.0)
        with using("xla"):
            run(1.0)
            with using("auto"):
                run(1.0)
    assert traced == ["native", "xla_wide", "native"]


def test_using_goes_before_the_variable_and_is_named_as_the_reason(variable: pytest.MonkeyPatch) -> None:
    variable.setenv(override.VARIABLE, "hadamard=reference")
    with using("xla"):
        assert re.search(r"xla_matmul +chosen \(using\('xla'\)\)", hadamard.explain(N=64, platform="tpu"))


def test_a_program_for_another_platform_gets_that_platforms_choices(variable: pytest.MonkeyPatch) -> None:
    traced = []

    @jax.jit
    def run(x: jax.Array) -> jax.Array:
        traced.append(choose(OP, None, {"T": 4}).name)
        return x

    with using(platform="cpu"):
        run(1.0)
        with using(platform="tpu"):
            run(1.0)
            with using("xla"):
                assert override.current_platform() == "tpu"
        run(1.0)
    assert traced == ["native", "xla_wide"]
    assert override.current_platform() == jax.default_backend()
    with pytest.raises(ValueError, match="platform is 'cuda'; accepted: cpu, gpu, tpu"), using(platform="cuda"):
        pass


def test_plain_xla_reads_the_layout_of_the_native_kernels(variable: pytest.MonkeyPatch) -> None:
    """Weights are laid out when a model is loaded, whatever is chosen later."""
    blocks = matmul.from_blocks(random_blocks("Q8_0", 37, 4, 0), "Q8_0")
    weight = prepare(blocks)
    x = np.random.default_rng(0).standard_normal((2, 128), np.float32)
    with using("xla"):
        assert re.search("xla_dequant +chosen", matmul.explain(x, weight))
        got = jax.jit(matmul.quant_matmul)(x, weight)
    expected = x @ np.asarray(dequantize(blocks)).T
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


def test_every_operation_has_implementations_in_plain_xla(variable: pytest.MonkeyPatch) -> None:
    """So that "xla" is a choice that always works; and a reference, which is the law."""
    for operation, table in TABLE.items():
        assert "reference" in table, operation
        assert any(name.startswith("xla_") and platforms == ANYWHERE for name, platforms in table.items()), operation


def test_explain_lists_the_known_operations() -> None:
    for unknown in ("conv", "gated_delta", "gated_delta.undo", "hadamard.verify"):
        with pytest.raises(ValueError, match=rf"operation '{unknown}' is not known; known: cache_attention.*hadamard"):
            pallas_kernels.explain(unknown)
