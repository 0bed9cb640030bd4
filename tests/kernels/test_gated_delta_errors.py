"""Bad arguments are named, with what was got and what is accepted."""

import re
from dataclasses import replace

import numpy as np
import pytest
from gated_delta_cases import DK, DV, HK, HV, draw

from pallas_kernels import gated_delta
from pallas_kernels.gated_delta import pallas_tpu_prefill, pallas_tpu_snapshots, pallas_tpu_verify
from pallas_kernels.gated_delta.config import TpuConfig, TpuPrefillConfig, tpu_heuristic
from pallas_kernels.gated_delta.implementations import OPERATIONS

KERNELS = {
    "prefill": pallas_tpu_prefill.prefill,
    "verify": pallas_tpu_verify.verify,
    "verify_snapshots": pallas_tpu_snapshots.verify_snapshots,
    "commit": pallas_tpu_verify.commit,
}
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
    with pytest.raises(ValueError, match=r"impl='pallas_gpu' does not fit: T=17 is more than 16 tokens, which follow"):
        gated_delta.prefill(*draw().first(17), impl="pallas_gpu")


@pytest.mark.parametrize("operation", ["prefill", "verify", "verify_snapshots", "commit"])
def test_the_tpu_kernels_refuse_states_that_vmem_cannot_hold(operation):
    """Held against the TPU compiler: 2 MiB of states for a key head compile in every operation, and 3 MiB do not."""
    sizes = {"T": 4, "Hk": 2, "Dk": 128, "Dv": 128}
    assert re.search("pallas_tpu +passed over: by name only", gated_delta.explain(operation, Hv=64, **sizes))
    unfit = next(i.unfit for i in OPERATIONS[operation].implementations if i.name == "pallas_tpu")
    assert unfit({**sizes, "Hv": 64}) is None
    assert unfit({**sizes, "Hv": 96}) == "the states of a key head take 3 MiB of VMEM: made for at most 2 MiB"
    assert unfit({**sizes, "Hv": 2, "Dk": 2048}) == "Dk=2048 is more than 1024"


def test_blocks_of_states_are_counted_in_whole_tiles_of_vmem():
    """A row of 32 values takes 128 lanes."""
    assert tpu_heuristic({"Hk": 16, "Hv": 64, "Dk": 128, "Dv": 32}).key_heads == 4


@pytest.mark.parametrize("operation", ["prefill", "verify", "verify_snapshots", "commit"])
def test_a_configuration_that_would_leave_heads_out_is_refused(operation):
    """A file of winners may hold one."""
    inputs = draw().first(2)
    records = gated_delta.Records(inputs.k, inputs.v, inputs.g)
    states = (SLOTS, np.array([0, 0])) if operation == "verify_snapshots" else (inputs.state,)
    given = (records if operation == "commit" else inputs.tokens, *states)
    counts = () if operation == "verify" else (np.array([2, 2]),)
    scale = {} if operation == "commit" else {"scale": 1.0}
    config = TpuPrefillConfig(3, 64) if operation == "prefill" else TpuConfig(3)
    with pytest.raises(ValueError, match=r"config.key_heads is 3; accepted: divisors of Hk = 2"):
        KERNELS[operation](*given, *counts, head_map="tiled", interpret=True, config=config, **scale)
    with pytest.raises(ValueError, match="key_heads is 0; accepted: at least 1"):
        replace(config, key_heads=0)
