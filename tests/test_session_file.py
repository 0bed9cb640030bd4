"""A session that was saved goes on as the one in memory does: same tokens, same reuse, same ways back."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import specjax
from specjax.decoding.settings import DraftConfig
from specjax.sessions.session import Session

FIXTURES = Path(__file__).parent / "fixtures"
HYBRID, DENSE, SLIDING = ("qwen3_5/dense/hf", "dense/qwen3/hf", "step3_5/flash/hf")
OPTIONS = specjax.GenerateOptions(max_tokens=8, ignore_eos=True)


@cache
def model(name: str, drafter: str | tuple[str, ...] | None = None) -> specjax.Model:
    return specjax.load(FIXTURES / name, drafter=drafter)


def said(turn: int, length: int = 9) -> list[int]:
    """What the user says in a turn."""
    return np.random.default_rng(turn).integers(0, 60, length).tolist()


def talk(chat: Session, lengths: tuple[int, ...]) -> Session:
    for turn, length in enumerate(lengths):
        _, chat = chat.generate([*chat.conversation, *said(turn, length)])
    return chat


def saved_and_loaded(chat: Session, path: Path, **drafter: Any) -> Session:
    """The session through a file, with a model that has been loaded anew."""
    chat.save(path)
    again = specjax.load(chat.model.path, **drafter).load_session(path)
    for name in ("options", "slots", "when_full", "keep", "name", "conversation", "turns", "drops", "tokens", "reuse"):
        assert getattr(again, name) == getattr(chat, name), name
    assert (again.memory and again.memory.limits) == (chat.memory and chat.memory.limits)
    return again


@pytest.mark.parametrize(
    ("name", "drafter", "options", "lengths"),
    [
        (HYBRID, None, replace(OPTIONS, draft=DraftConfig(3, p_min=0.1)), (9, 20)),
        pytest.param(
            HYBRID,
            None,
            replace(OPTIONS, draft=0, rollback="snapshot", temperature=0.8, seed=4),
            (9, 20),
            marks=pytest.mark.slow,
        ),
        pytest.param(SLIDING, None, replace(OPTIONS, draft=2), (330, 9), marks=pytest.mark.slow),
        pytest.param(HYBRID, ("ngram", "mtp"), replace(OPTIONS, draft=3), (9, 20), marks=pytest.mark.slow),
        (DENSE, "ngram", replace(OPTIONS, draft=2, kv_type_k="bf16", kv_type_v="turbo3"), (40, 9)),
    ],
    ids=["recurrent-with-head", "snapshots-sampled", "rings-with-heads", "several", "bf16-turbo3-ngrams"],
)
def test_a_saved_session_goes_on_as_the_one_in_memory(
    name: str,
    drafter: str | tuple[str, ...] | None,
    options: specjax.GenerateOptions,
    lengths: tuple[int, ...],
    tmp_path: Path,
) -> None:
    slots = 256 if sum(lengths) < 200 else 512
    chat = talk(model(name, drafter).session(options, slots=slots).fork("a name"), lengths)
    again = saved_and_loaded(chat, tmp_path / "chat", drafter=drafter)
    forwards = [*chat.conversation, *said(7)]
    changed = [*chat.conversation[:-5], *said(8)]  # within the last reply: back to a state that was kept, or a cut
    for prompt in (forwards, changed):
        (want, after), (got, after_file) = chat.generate(prompt), again.generate(prompt)
        assert got.tokens == want.tokens
        assert after_file.reuse == after.reuse
        assert after.reuse is not None
        assert after.reuse.reused > 0
    place = len(chat.conversation) - 4
    assert again.at(place).reuse == chat.at(place).reuse
    assert again.at(place).turns == chat.at(place).turns


def test_what_was_dropped_of_a_conversation_stays_known(tmp_path: Path) -> None:
    options = replace(OPTIONS, draft=0)
    chat = talk(model(DENSE).session(options, slots=256, when_full="shift", keep=2), (100, 100, 100))
    assert chat.cuts
    again = saved_and_loaded(chat, tmp_path / "chat")
    prompt = [*chat.conversation, *said(9)]
    (want, after), (got, after_file) = chat.generate(prompt), again.generate(prompt)
    assert (got.tokens, after_file.reuse) == (want.tokens, after.reuse)


def test_slots_that_are_not_in_use_take_no_room(tmp_path: Path) -> None:
    chat = talk(model(DENSE).session(replace(OPTIONS, draft=0), slots=256), (40,))
    chat.save(tmp_path / "chat")
    caches = [array for array in load_file(tmp_path / "chat").values() if array.ndim == 4]
    assert caches
    assert {array.shape[1] for array in caches} == {len(chat.tokens)}


def test_a_session_before_its_first_turn_can_be_saved(tmp_path: Path) -> None:
    chat = model(DENSE).session(replace(OPTIONS, draft=0), slots=256)
    again = saved_and_loaded(chat, tmp_path / "chat")
    assert again.memory is None
    assert again.generate(said(0))[0].tokens == chat.generate(said(0))[0].tokens


def test_damage_anywhere_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "chat"
    talk(model(DENSE).session(replace(OPTIONS, draft=0), slots=256), (10,)).save(path)
    whole, rng = path.read_bytes(), random.Random(0)
    for _ in range(100):
        at = rng.randrange(len(whole))
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << rng.randrange(8)]) + whole[at + 1 :])
        with pytest.raises(specjax.SpecjaxError, match=r"saved session|damaged"):
            model(DENSE).load_session(path)
    path.write_bytes(whole[:-100])
    with pytest.raises(specjax.SpecjaxError, match="damaged"):
        model(DENSE).load_session(path)


def test_a_session_of_a_model_with_other_matrices_is_refused(tmp_path: Path) -> None:
    """Also where all vectors are equal, as in a fine-tune with frozen norms, and rows have only changed places."""
    chat = talk(model(DENSE).session(replace(OPTIONS, draft=0), slots=256), (10,))
    chat.save(tmp_path / "chat")
    folder = tmp_path / "tuned"
    shutil.copytree(FIXTURES / DENSE, folder)
    weights = load_file(folder / "model.safetensors")
    name = next(name for name in weights if name.endswith("up_proj.weight"))
    save_file(weights | {name: weights[name][::-1].copy()}, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(specjax.SpecjaxError, match=r"another model: \S+ has a digest of the weights of its own"):
        specjax.load(folder).load_session(tmp_path / "chat")
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    again = specjax.load(folder, dtype="bfloat16").load_session(tmp_path / "chat")
    assert again.tokens == chat.tokens


def test_sessions_of_other_models_and_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "chat"
    model(HYBRID).session(replace(OPTIONS, draft=3), slots=256).save(path)
    with pytest.raises(specjax.SpecjaxError, match="has no MTP head"):
        model(DENSE).load_session(path)
    model(HYBRID).session(replace(OPTIONS, draft=0), slots=256).save(path)
    with pytest.raises(
        specjax.SpecjaxError, match=r"another model: .* a config, digest of the weights, norms and .*own"
    ):
        model(DENSE).load_session(path)
    model(DENSE, "ngram").session(OPTIONS, slots=256).save(path)
    with pytest.raises(specjax.SpecjaxError, match=r"another model: \S+ has a drafter of its own"):
        model(DENSE).load_session(path)
    save_file({"x": np.zeros(1)}, path)
    for content in (path.read_bytes(), b"something else"):
        path.write_bytes(content)
        with pytest.raises(specjax.SpecjaxError, match="no saved session"):
            model(DENSE).load_session(path)
    with pytest.raises(FileNotFoundError):
        model(DENSE).load_session(tmp_path / "nowhere")
