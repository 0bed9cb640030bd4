"""Bad arguments are named, with what was got and what is accepted."""

import numpy as np
import pytest
from gated_delta_cases import DK, DV, HK, HV, draw

from pallas_kernels import gated_delta

SLOTS = np.zeros((2, 3, HV, DK, DV), np.float32)


def call(operation, **changed):
    inputs = draw().first(4)._asdict() | {"slots": SLOTS, "slot": np.array([0, 0])} | changed
    state = inputs.pop("state")
    if operation == "verify_snapshots":
        return gated_delta.verify_snapshots(**inputs)
    del inputs["slots"], inputs["slot"]
    return getattr(gated_delta, operation)(**inputs, state=state)


@pytest.mark.parametrize("operation", ["prefill", "verify", "verify_snapshots"])
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"q": np.zeros((2, 4, DK), np.float32)}, r"q has shape \(2, 4, 16\); accepted: \[B T Hk Dk\]"),
        ({"k": np.zeros((2, 5, HK, DK), np.float32)}, r"k has shape \(2, 5, 2, 16\); \[B T Hk Dk\] is \(2, 4, 2, 16\)"),
        ({"g": np.zeros((2, 4, HK), np.float32)}, r"g has shape \(2, 4, 2\); \[B T Hv\] is \(2, 4, 4\)"),
        ({"beta": np.zeros((2, 4, HV))}, r"beta is float64; accepted: float32, bfloat16, float16"),
        ({"n_valid": np.array([4, 4, 4])}, r"n_valid has shape \(3,\); \[B\] is \(2,\)"),
        ({"n_valid": np.array([4.0, 4.0])}, r"n_valid is float64; accepted: an integer dtype"),
        ({"head_map": "striped"}, r"head_map is 'striped'; accepted: 'tiled', 'grouped'"),
        ({"impl": "fast"}, r"impl='fast' is not known.*name one that fits: .*xla_"),
    ],
)
def test_a_bad_argument_is_named(operation, changed, message):
    with pytest.raises(ValueError, match=rf"gated_delta\.{operation}: {message}"):
        call(operation, **changed)


@pytest.mark.parametrize("operation", ["prefill", "verify"])
@pytest.mark.parametrize(
    ("state", "message"),
    [
        (
            np.zeros((2, HV, DV, DK), np.float32),
            r"state has shape \(2, 4, 64, 16\); \[B Hv Dk Dv\] is \(2, 4, 16, 64\)",
        ),
        (np.zeros((2, 3, HV, DK, DV), np.float32), r"state has shape \(2, 3, 4, 16, 64\); \[B Hv Dk Dv\] is"),
        (np.zeros((2, HV, DK, DV), np.float16), r"state is float16; recurrent state is float32"),
    ],
)
def test_a_bad_state_is_named(operation, state, message):
    with pytest.raises(ValueError, match=message):
        call(operation, state=state)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"slots": SLOTS[:, 0]}, r"slots has shape \(2, 4, 16, 64\); accepted: \[B M Hv Dk Dv\]"),
        ({"slots": SLOTS[:, :0]}, r"slots has shape \(2, 0, .*; no axis of \[B M Hv Dk Dv\] may be empty"),
        ({"slots": SLOTS[:1]}, r"slots has shape \(1, 3, .*is \(2, 3, 4, 16, 64\)"),
        ({"slot": np.array([0])}, r"slot has shape \(1,\); \[B\] is \(2,\)"),
    ],
)
def test_bad_slots_are_named(changed, message):
    with pytest.raises(ValueError, match=message):
        call("verify_snapshots", **changed)


def test_value_heads_must_be_a_multiple_of_key_heads():
    inputs = draw().first(2)
    three = [x[:, :, :3] for x in inputs[2:5]]
    with pytest.raises(ValueError, match="v has 3 heads and k 2; the value heads must be a multiple"):
        gated_delta.verify(*inputs[:2], *three, inputs.state[:, :3])


def test_commit_names_records_that_do_not_belong_to_the_state():
    inputs = draw().first(2)
    records = gated_delta.Records(k=inputs.k, u=inputs.v, g=inputs.g)
    with pytest.raises(ValueError, match=r"gated_delta.commit: state has shape \(2, 4, 8, 64\)"):
        gated_delta.commit(inputs.state[:, :, :8], records, np.array([1, 1]))
    with pytest.raises(ValueError, match=r"gated_delta.commit: n has shape \(\); \[B\] is \(2,\)"):
        gated_delta.commit(inputs.state, records, np.array(1))
    with pytest.raises(ValueError, match=r"records.u has shape"):
        gated_delta.commit(inputs.state, records._replace(u=records.u[:, :1]), np.array([1, 1]))
    with pytest.raises(ValueError, match=r"gated_delta.commit: impl='xla_wy' is not known.*xla_recurrent, pallas_tpu"):
        gated_delta.commit(inputs.state, records, np.array([1, 1]), impl="xla_wy")


def test_a_kernel_names_the_tokens_that_are_too_many_for_it():
    inputs = draw().first(17)
    records = gated_delta.Records(k=inputs.k, u=inputs.v, g=inputs.g)
    with pytest.raises(ValueError, match=r"verify: impl='pallas_tpu' does not fit: T=17 is more than 16 tokens"):
        gated_delta.verify(*inputs, impl="pallas_tpu")
    with pytest.raises(ValueError, match=r"commit: impl='pallas_tpu' does not fit: T=17 is more than 16 tokens"):
        gated_delta.commit(inputs.state, records, np.array([1, 1]), impl="pallas_tpu")
