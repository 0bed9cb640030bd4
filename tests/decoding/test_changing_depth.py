"""Chunks of different depths on one running state: no token changes, and the drafter knows all that was said."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drafter_fixtures import attached, target
from jax import Array
from scripted import cut, feed, ragged_prompts, start
from small_model import CONFIG, agreeing_params
from test_loop_drafters import with_draft_model
from tiny_models import DENSE, make_params

import checkpoints
import specjax
from specjax.decoding.decoder import Decoder
from specjax.decoding.loop import decode_chunk, leaves_behind
from specjax.decoding.settings import DraftConfig, SamplerConfig, Settings
from specjax.models.drafters.draft_model import DraftModel
from specjax.models.drafters.first_of import FirstOf
from specjax.models.drafters.ngram import NGram
from specjax.models.gemma4 import Gemma4Assistant, Gemma4Target
from specjax.models.protocol import Params, Proposal
from specjax.models.qwen3_5 import Qwen35MTP, Qwen35Target
from specjax.models.registry import FAMILIES
from specjax.models.step3_5 import Step35MTP, Step35Target
from specjax.runtime.backlog import Backlog
from specjax.state import SequenceState

FIXTURES = Path(__file__).parents[1] / "fixtures"
LENGTHS = (1, 17, 65)
BUDGETS = (44, 29, 44)
SAMPLERS = (SamplerConfig(), SamplerConfig(temperature=0.8), SamplerConfig())
CHANGES = ((3, 2), (0, 11), (1, 2), (0, 1), (0, 2), (3, 3), (0, 3), (1, 1))
"""Depths of chunks, and their rounds."""

Drafts = dict[tuple[int, int], list[int]]


@pytest.fixture(autouse=True)
def _short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits then fills several blocks, of both sizes, and one that is not full."""
    monkeypatch.setattr("specjax.decoding.unseen.BLOCKS", (2, 8))


def qwen(rollback: str) -> tuple[Decoder, Params]:
    return Decoder(Qwen35Target(DENSE), Qwen35MTP(DENSE), "coupled", 3, rollback), make_params(DENSE)


def bundled() -> tuple[Decoder, Params]:
    """Its head is trained, so that drafts stand and several verified rows wait where the depth changes."""
    model = specjax.load()
    return Decoder(model.target, model.drafter, "coupled", 3), dict(model.params)


def agreeing() -> tuple[Decoder, Params]:
    """The head is often right, so that drafts stand and several verified rows wait where the depth changes."""
    return Decoder(Qwen35Target(CONFIG), Qwen35MTP(CONFIG), "greedy", 3), agreeing_params(CONFIG)


def small_model() -> tuple[Decoder, Params]:
    drafter = DraftModel(Qwen35Target(DENSE), DENSE.vocab_size)
    return Decoder(Qwen35Target(DENSE), drafter, "coupled", 3), with_draft_model(0.05)


def ngrams() -> tuple[Decoder, Params]:
    return Decoder(Qwen35Target(DENSE), NGram(longest=3, shortest=1), "coupled", 3), make_params(DENSE)


def several() -> tuple[Decoder, Params]:
    """N-grams before the trained head: both serve rows, and the head's state is kept up while it serves none."""
    model = specjax.load(drafter=[NGram(longest=4, shortest=2), "mtp"])
    return Decoder(model.target, model.drafter, "coupled", 3), dict(model.params)


def chained_heads() -> tuple[Decoder, Params]:
    loaded = checkpoints.load(FIXTURES / "step3_5" / "flash" / "model.gguf", FAMILIES)
    return Decoder(Step35Target(loaded.config), Step35MTP(loaded.config), "coupled", 3), dict(loaded.params)


def assistant() -> tuple[Decoder, Params]:
    target = checkpoints.load(FIXTURES / "gemma4" / "dense" / "model.gguf", FAMILIES)
    own = checkpoints.load(FIXTURES / "gemma4" / "dense" / "assistant", FAMILIES, need_tokenizer=False)
    drafter = Gemma4Assistant(target.config, own.config)
    return Decoder(Gemma4Target(target.config), drafter, "coupled", 3), {**target.params, **own.params}


def trained(folder: str) -> tuple[Decoder, Params]:
    drafter, params = attached(f"{folder}/llama_cpp/hf")
    return Decoder(target()[0], drafter, "coupled", 3), params


@dataclass(frozen=True)
class NowAndThen(specjax.BaseDrafter):
    """Serves about half of the rounds of each row, and in some rounds all rows."""

    def propose(self, params: Params, pending: Array, state: SequenceState, *, num_drafts: int, **_: Any) -> Proposal:
        serves = (state.length // 2 + pending // 8) % 2 == 0
        drafts = jnp.broadcast_to(pending[:, None], (len(pending), num_drafts))
        return Proposal.sure(drafts, None, made=jnp.where(serves, num_drafts, 0))


def decode(
    decoder: Decoder, params: Params, changes: Sequence[tuple[int, int]], source: int | None = None
) -> tuple[list[list[int]], Drafts]:
    """The tokens of each row, and its drafts by row and by how many tokens it had emitted before; those of one drafter,
    or all.
    """
    prompts = ragged_prompts(decoder.target.config, LENGTHS, seed=3)
    sequences, logits = feed(decoder, params, prompts)
    samplers = [SamplerConfig()] * len(LENGTHS) if decoder.rule == "greedy" else SAMPLERS
    wanted = [Settings(sampler, DraftConfig(n_max=decoder.max_drafts)) for sampler in samplers]
    settings = decoder.settings(wanted)
    state, first = start(decoder, sequences, logits, jnp.asarray(BUDGETS), settings, jnp.arange(len(LENGTHS)))
    tokens = [[int(token)] for token in first.tokens[:, 0]]
    drafts: Drafts = {}
    chunk, backlog = 0, Backlog(len(LENGTHS), slots=64)
    while bool(jnp.any(state.active)):
        depth, rounds = changes[chunk % len(changes)]
        if depth and decoder.drafter and backlog:
            sequences, _ = backlog.given(decoder.drafter, params, state.sequences)
            state = replace(state, sequences=sequences)
        program = decoder.at_most(depth)
        waiting = backlog.taken(program, params, 11) if leaves_behind(program, state) else ()
        state, record = decode_chunk(program, params, state, 11, np.int32(rounds), None, *waiting)
        chunk += 1
        if record.waiting is not None:
            backlog.put(record.waiting, rounds, range(len(LENGTHS)))
        done = cut(jax.device_get(record))
        for index, (row, said) in product(range(int(record.n_rounds)), enumerate(tokens)):
            if count := int(done.n_emitted[index, row]):
                if source in (None, done.source[index, row]):
                    drafts[row, len(said)] = done.drafts[index, row, : done.n_drafted[index, row]].tolist()
                said += done.tokens[index, row, :count].tolist()
    return tokens, drafts


@pytest.mark.parametrize(
    "model",
    [
        agreeing,
        pytest.param(bundled, marks=pytest.mark.slow),
        pytest.param(lambda: qwen("replay"), marks=pytest.mark.slow),
        pytest.param(lambda: qwen("snapshot"), marks=pytest.mark.slow),
        pytest.param(small_model, marks=pytest.mark.slow),
        pytest.param(ngrams, marks=pytest.mark.slow),
        pytest.param(several, marks=pytest.mark.slow),
        pytest.param(chained_heads, marks=pytest.mark.slow),
        pytest.param(assistant, marks=pytest.mark.slow),
        pytest.param(lambda: trained("eagle3"), marks=pytest.mark.slow),
        pytest.param(lambda: trained("dflash"), marks=pytest.mark.slow),
        pytest.param(lambda: trained("dspark"), marks=pytest.mark.slow),
    ],
    ids=[
        "agreeing head",
        "bundled",
        "replay",
        "snapshot",
        "draft model",
        "ngrams",
        "several",
        "chained heads",
        "assistant",
        "eagle3",
        "dflash",
        "dspark",
    ],
)
def test_changing_the_depth_changes_neither_tokens_nor_drafts(model: Callable[[], tuple[Decoder, Params]]) -> None:
    """Greedy rows; in the slow cases one by the coupled rule. Steady depths are tested for each drafter elsewhere."""
    decoder, params = model()
    want, steady = decode(decoder, params, [(3, 11)])
    got, changing = decode(decoder, params, CHANGES)
    assert got == want
    assert_same_drafts(steady, changing)


def assert_same_drafts(one: Drafts, other: Drafts) -> None:
    """Where both have some, as far as both go."""
    compared = [(one[place], other[place]) for place in one.keys() & other.keys() if other[place]]
    assert len(compared) >= 10
    for some, others in compared:
        shared = min(len(some), len(others))
        assert some[:shared] == others[:shared]


@pytest.mark.slow
@pytest.mark.parametrize(
    "model",
    [
        pytest.param(chained_heads, marks=pytest.mark.slow),
        lambda: trained("dflash"),
        pytest.param(assistant, marks=pytest.mark.slow),
        pytest.param(small_model, marks=pytest.mark.slow),
        pytest.param(lambda: trained("eagle3"), marks=pytest.mark.slow),
        pytest.param(lambda: trained("dspark"), marks=pytest.mark.slow),
    ],
    ids=["chained heads", "dflash", "assistant", "draft model", "eagle3", "dspark"],
)
def test_a_drafter_that_serves_now_and_then_drafts_as_it_does_alone(
    model: Callable[[], tuple[Decoder, Params]],
) -> None:
    """While another one serves some rows of a round or all of them, its state is kept up."""
    decoder, params = model()
    assert decoder.drafter is not None
    want, alone = decode(decoder, params, [(3, 11)])
    together = replace(decoder, drafter=FirstOf((NowAndThen(), decoder.drafter)))
    got, beside = decode(together, params, [(3, 11)], source=1)
    assert got == want
    assert len(beside) < 0.8 * len(alone)
    assert_same_drafts(alone, beside)
