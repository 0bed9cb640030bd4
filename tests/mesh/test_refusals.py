"""What does not run on several devices is refused, and the message says what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from made_models import write

import specjax
from specjax.cli.main import main

pytestmark = pytest.mark.mesh

Load = Callable[..., specjax.Model]


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("files"), "hybrid", "F32")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mesh": "1x3"}, r"3 parts.*: num_heads \(8\), linear_key_heads \(4\), .*, num_kv_heads \(2\);"),
        ({"mesh": "2x4"}, "takes 8 devices; there are 4"),
        ({"mesh": "4"}, "give ROWSxMODEL"),
        ({"mesh": "1x2", "place": ["mtp=pinned_host"]}, "do not go together"),
        ({"exact": True, "place": ["mtp=pinned_host"]}, "exact=True and place=.* do not go together"),
    ],
    ids=str,
)
def test_what_cannot_be_split_is_refused(hybrid: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(specjax.SpecjaxError, match=message):
        specjax.load(hybrid, **settings)


def test_a_mesh_with_other_axes_is_refused(hybrid: Path) -> None:
    mesh = jax.make_mesh((2, 2), ("data", "model"))
    with pytest.raises(specjax.SpecjaxError, match=r"the axes \('data', 'model'\)"):
        specjax.load(hybrid, mesh=mesh)


def test_blocks_that_would_be_cut_are_listed(tmp_path: Path) -> None:
    """A quarter of 128 columns of heads is a block of Q8_0, and a quarter of 64 is none."""
    path = write(tmp_path, "qwen3", "Q8_0")
    specjax.load(path, mesh="1x4")
    narrow = write(tmp_path, "narrow", "Q8_0")
    with pytest.raises(
        specjax.SpecjaxError, match=r"layers_0.attention.o_proj.weight \(blocks of 32\).*layers_1.*packed=None"
    ):
        specjax.load(narrow, mesh="1x4")
    specjax.load(narrow, mesh="1x4", packed=None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--processes", "2", "--process", "0"], "need a --coordinator"),
        (["--coordinator", "localhost:1", "--mesh", "2x2"], "--coordinator needs --processes and --process"),
        (["--coordinator", "localhost:1", "--processes", "2", "--process", "0"], "need a --mesh"),
    ],
    ids=["nowhere to meet", "no numbers", "no mesh"],
)
def test_processes_that_cannot_meet_are_refused(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", *options]) == 2
    assert message in capsys.readouterr().err


def test_programs_of_one_device_say_so(load: Load) -> None:
    model = load("hybrid", mesh="1x2")
    with pytest.raises(ValueError, match="load it onto one device"):
        jax.jit(model.target.norm)(model.params, np.zeros((1, model.config.width), np.float32))
