"""An implementation is chosen for a reason that can be read, and a named one never falls back."""

import re

import pytest

from pallas_kernels import gated_delta
from pallas_kernels.dispatch import Form, Implementation, Operation, choose, explain, operation


def refuses_wide(dims):
    return f"T={dims['T']} is over 4" if dims["T"] > 4 else None


OP = Operation(
    "op",
    (
        Implementation("narrow", min, frozenset({"tpu"}), refuses_wide),
        Implementation("named", max),
        Implementation("wide", sum, frozenset({"tpu", "cpu"})),
    ),
)


def test_the_first_that_fits_the_platform_and_the_sizes_is_chosen():
    assert choose(OP, None, {"T": 4}, "tpu").name == "narrow"
    assert choose(OP, None, {"T": 5}, "tpu").name == "wide"
    assert choose(OP, None, {"T": 4}, "cpu").name == "wide"


def test_a_named_implementation_is_taken_whatever_the_platform():
    assert choose(OP, "narrow", {"T": 1}, "cpu").name == "narrow"


def test_a_named_implementation_that_does_not_fit_is_an_error_with_the_reason():
    with pytest.raises(ValueError, match=r"op: impl='narrow' does not fit: T=5 is over 4\..*that fits: named, wide"):
        choose(OP, "narrow", {"T": 5}, "tpu")


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"op: impl='other' is not known\..*narrow, named, wide"):
        choose(OP, "other", {"T": 1}, "cpu")


def test_no_fit_is_an_error_that_explains_every_implementation():
    with pytest.raises(ValueError, match=r"(?s)no implementation fits.*narrow.*T=9 is over 4.*named.*by name only"):
        choose(Operation("op", OP.implementations[:2]), None, {"T": 9}, "tpu")


def test_explain_has_a_verdict_for_every_implementation():
    assert explain(OP, {"T": 4}, "tpu").splitlines() == [
        "op on tpu, T=4:",
        "  narrow  chosen",
        "  named   passed over: by name only",
        "  wide    fits",
    ]


def test_gated_delta_explains_its_choice():
    text = gated_delta.explain("verify", platform="cpu", T=4, Hk=16, Hv=48, Dk=128, Dv=128)
    assert re.search(r"gated_delta.verify on cpu, T=4.*\n(.*\n)*  \w+ +chosen", text)
    assert "grouped" not in text
    sizes = {"T": 4, "Hk": 16, "Hv": 48, "Dk": 128, "Dv": 128}
    grouped = gated_delta.explain("verify", platform="cpu", head_map="grouped", **sizes)
    assert "Dv=128, grouped=True:" in grouped, "other key heads are read there: it is another kind of call"
    with pytest.raises(ValueError, match=r"operation is 'undo'; accepted: .*verify"):
        gated_delta.explain("undo", T=4, Hk=1, Hv=1, Dk=8, Dv=8)
    with pytest.raises(ValueError, match="sizes missing: Hk, Dv"):
        gated_delta.explain("verify", T=4, Hv=1, Dk=8)


def test_the_hopper_kernel_refuses_widths_that_it_cannot_tile():
    import numpy as np

    q, v = np.zeros((1, 1, 1, 16), np.float32), np.zeros((1, 1, 1, 40), np.float32)
    scalars, slots = np.zeros((1, 1, 1), np.float32), np.zeros((1, 1, 1, 16, 40), np.float32)
    with pytest.raises(ValueError, match=r"impl='pallas_gpu' does not fit: Dv=40 is not a multiple of"):
        gated_delta.verify_snapshots(q, q, v, scalars, scalars, slots, np.array([0]), impl="pallas_gpu")


def test_an_operation_has_the_implementations_of_the_table():
    form = Form(max)
    made = operation("rms_norm", reference=form, xla_reduce=form, cpu_native=form)
    assert made.names() == ["cpu_native", "xla_reduce", "reference"]
    with pytest.raises(TypeError, match="rms_norm: implementations are reference; the table has cpu_native, xla_red"):
        operation("rms_norm", reference=form)
