"""Each family's training sees what its drafter will see, and its runs can be described, resumed and exported."""

from __future__ import annotations

import argparse
import io
import json
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict
from rich.console import Console
from test_training import CONFIG
from tiny_models import relative_rms
from tokenizers import Tokenizer, models

import specjax
from specjax.cli import train as cli
from specjax.models import registry
from specjax.models.gemma4 import CentroidHead, Gemma4Assistant, Gemma4Target
from specjax.models.protocol import Choice, Drafter, FeatureRequest, Params, Target
from specjax.models.step3_5 import Step35Config
from specjax.state import KVTypes, SequenceState
from specjax.training.corpus import Corpus, Document
from specjax.training.export import export_gguf, load_params
from specjax.training.families.base import TrainingConfig
from specjax.training.families.gemma4 import Gemma4Pair, routing_loss
from specjax.training.families.registry import FAMILIES, family_of
from specjax.training.initial import initial_parameters
from specjax.training.loss import predict
from specjax.training.optimizer import to_trainable
from specjax.training.plain import from_plain
from specjax.training.progress import Progress
from specjax.training.recipe import Recipe
from specjax.training.run import run
from specjax.training.run_folder import RunFolder
from specjax.training.trainer import Outcome, model_params

VOCABULARY = 276
LENGTH = 48  # of the texts: twice the window of the sliding layers
STEPS = {"qwen3_5": 1, "gemma4": 2, "step3_5": 3}
"""Draft steps whose training is drafting itself; the later ones of Qwen3.5 read a cache of the head's own rows."""
TRAINED = ("gemma4", "step3_5")  # whole runs of Qwen3.5 are in test_training.py
CORPUS = Corpus(
    train=tuple(Document(f"{i}.py", f"def function_{i}(x):\n    return x + {i}\n\n\n" * 4) for i in range(12)),
    held_out=tuple(Document(f"held_{i}.py", f"def held_{i}(x):\n    return x * {i}\n" * 4) for i in range(3)),
)
RECIPE = Recipe(
    steps=6,
    batch_size=2,
    length=24,
    optimizer="adamw",  # is compiled in a fraction of Muon's time
    learning_rate=1e-2,
    warmup_steps=2,
    mtp_steps=2,
    mtp_sequences=2,
    eval_every=6,
    save_every=6,
)


def small(name: str) -> TrainingConfig:
    """The family's demo model with two layers, and with as few tokens as the corpus above yields.

    Of Qwen3.5 the model of `test_training.py`, whose programs are shared.
    """
    config = FAMILIES[name].demo_config
    if isinstance(config, Gemma4Pair):
        target = replace(config.target, vocab_size=VOCABULARY, layer_types=config.target.layer_types[:2])
        return Gemma4Pair(target, replace(config.assistant, vocab_size=VOCABULARY, centroids=CentroidHead(12, 3)))
    if isinstance(config, Step35Config):
        return replace(config, vocab_size=VOCABULARY, layers=config.layers[2:])
    return CONFIG


def parts(config: TrainingConfig) -> tuple[Target, Drafter]:
    if isinstance(config, Gemma4Pair):
        return Gemma4Target(config.target), Gemma4Assistant(config.target, config.assistant)
    target, drafter = registry.build(config)
    assert drafter is not None
    return target, drafter


@partial(jax.jit, static_argnames=("config", "drafts"))
def drafted_logits(
    config: TrainingConfig, params: Params, text: jax.Array, committed: jax.Array, drafts: int
) -> jax.Array:
    """What the drafter scores in rounds after so many tokens of the text, [B, K, V], if its drafts were the text."""
    target, drafter = parts(config)
    batch, tokens = len(committed), jnp.broadcast_to(text, (len(committed), LENGTH))
    options = {"rows": drafts + 1, "chunk": LENGTH, "kv_types": KVTypes()}
    layers = target.init_layers(batch, LENGTH, rollback="replay", **options)
    state = SequenceState(layers, drafter.init_state(batch, LENGTH, **options), jnp.zeros((batch,), jnp.int32))
    request = FeatureRequest(final_hidden=True)
    output, after = target.extend(params, tokens, committed, state, request=request, rows="none")
    own = drafter.extend(params, tokens, output.features, committed, state.drafter, state.length)

    def forced(logits: jax.Array, position: jax.Array, scored: Any = None, before: Any = None) -> Choice:
        if scored is not None:
            row = jnp.full((batch, config.vocab_size), -jnp.inf)
            logits = jnp.put_along_axis(row, scored, logits, axis=1, inplace=False)
        return Choice(text[position], logits, jnp.ones((batch,)))

    proposal = drafter.propose(
        params,
        text[committed],
        SequenceState(after.layers, own, committed),
        num_drafts=drafts,
        choose=forced,
        keep_going=lambda confidence, made: confidence > 0,
    )
    assert proposal.logq is not None
    return proposal.logq


@pytest.mark.parametrize("name", ["qwen3_5", "gemma4", pytest.param("step3_5", marks=pytest.mark.slow)])
def test_the_drafter_trains_on_what_it_is_fed_when_it_drafts(name: str) -> None:
    config, drafts = small(name), STEPS[name]
    begin = initial_parameters(config, jax.random.key(0))
    params = jax.tree.map(lambda x: 5 * np.asarray(x) if x.ndim == 2 else x, begin)  # so large that every part matters
    text = jnp.asarray(np.random.default_rng(1).integers(0, config.vocab_size, LENGTH, dtype=np.int32))
    committed = np.array([1, 2, 5, 23, 24, 25, 40, LENGTH - drafts - 1])
    got = drafted_logits(config, params, text, committed, drafts)
    trained = jax.jit(predict, static_argnums=(0, 3, 4))(config, params, text[None], drafts, 1)
    for step, logits in enumerate(trained.mtp):
        want = logits[0, committed + step]
        scored = np.isfinite(got[:, step])
        assert scored.sum(axis=-1).min() >= config.vocab_size // 4
        assert relative_rms(np.where(scored, got[:, step], 0), np.where(scored, want, 0)) < 1e-5


def quiet() -> Progress:
    return Progress(Console(file=io.StringIO()))


@pytest.fixture(scope="module", params=["gemma4", pytest.param("step3_5", marks=pytest.mark.slow)])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[RunFolder, Outcome]:
    folder = RunFolder(tmp_path_factory.mktemp(request.param))
    return folder, run(folder, small(request.param), RECIPE, CORPUS, quiet())


def test_the_losses_of_trunk_and_drafts_decrease(trained: tuple[RunFolder, Outcome]) -> None:
    folder, outcome = trained
    assert outcome.finished
    lines = [line for line in folder.read_metrics() if line["event"] == "step"]
    for name in ("loss", "mtp_loss_1", "mtp_loss_2"):
        assert lines[-1][name] < lines[0][name] - 0.3
    assert 0 <= json.loads(folder.report.read_text())["mtp_agreement_2"] <= 1
    begin = to_trainable(initial_parameters(outcome.config, jax.random.key(RECIPE.seed)))
    assert unmoved(begin, outcome.state.params) == []


def unmoved(before: Params, after: Params) -> list[str]:
    """The paths of the parameters that training left as they were."""
    equal = jax.tree.map(lambda a, b: bool((np.asarray(a) == np.asarray(b)).all()), before, after)
    return [path for path, same in flatten_dict(equal, sep="/").items() if same]


def test_a_runs_description_names_its_model(trained: tuple[RunFolder, Outcome]) -> None:
    folder, outcome = trained
    assert folder.read_config() == outcome.config
    assert folder.read_family() == family_of(outcome.config)
    jax.tree.map(np.testing.assert_array_equal, load_params(folder), outcome.params)
    with pytest.raises(ValueError, match=f"holds a run of a {folder.read_family().name} model, not of a qwen3_5 one"):
        run(folder, small("qwen3_5"), RECIPE, CORPUS, quiet())


def test_what_is_exported_loads_and_drafts(trained: tuple[RunFolder, Outcome], tmp_path: Path) -> None:
    folder, outcome = trained
    first, *others = export_gguf(folder, tmp_path / "model.gguf", "F32")
    assert [path.name for path in others] == ["model-assistant.gguf"] * isinstance(outcome.config, Gemma4Pair)
    model = specjax.load(first, drafter=others[0] if others else None, need_tokenizer=True)
    jax.tree.map(np.testing.assert_array_equal, model.params, outcome.params)
    prompt = "def held_7(x):\n"
    drafted = model.generate(prompt, max_tokens=8, draft=2, ignore_eos=True)
    assert drafted.stats.drafted > 0
    said = model.logits([*model.encode(prompt), *drafted.tokens]).argmax(axis=-1)
    assert drafted.tokens == said[-9:-1].tolist(), "what comes next without drafts"


@pytest.mark.slow  # test_training.py trains a head of Qwen3.5, and what moves in an assistant is seen above
@pytest.mark.parametrize("trained", ["gemma4"], indirect=True)
def test_head_training_changes_the_assistant_alone(trained: tuple[RunFolder, Outcome], tmp_path: Path) -> None:
    folder, before = trained
    recipe = replace(RECIPE, steps=1, head_only=True)  # a second one would be another program
    after = run(RunFolder(tmp_path), before.config, recipe, CORPUS, quiet(), start=folder)
    jax.tree.map(np.testing.assert_array_equal, after.params["target"], before.params["target"])
    assert unmoved(before.params["mtp"], after.params["mtp"]) == ["centroids/token_ordering"]


def test_what_no_gradient_reaches_is_no_part_of_the_training_state() -> None:
    config = small("gemma4")
    params = initial_parameters(config, jax.random.key(0))
    trainable = to_trainable(params)
    assert "token_ordering" not in trainable["mtp"]["centroids"]
    whole = model_params(config, trainable)
    assert jax.tree.structure(whole) == jax.tree.structure(params)
    ordering = whole["mtp"]["centroids"]["token_ordering"]
    assert ordering.dtype == jnp.int32
    assert ordering.tolist() == list(range(VOCABULARY))


def test_centroids_fit_best_where_they_hold_the_trunks_probability() -> None:
    ordering = np.array([3, 0, 5, 1, 2, 4])
    trunk = np.log(np.array([[[0.1, 0.2, 0.1, 0.3, 0.2, 0.1]] * 2], np.float32))
    of_group = np.array([0.3 + 0.1, 0.1 + 0.2, 0.1 + 0.2], np.float32)  # tokens 3 and 0, 5 and 1, 2 and 4
    loss = jax.jit(routing_loss, static_argnums=3)
    best = loss(np.tile(np.log(of_group), (1, 2, 1)), ordering, trunk, 1)
    assert best == pytest.approx(-float(np.sum(of_group * np.log(of_group))))
    assert loss(np.zeros((1, 2, 3), np.float32), ordering, trunk, 1) > best


def test_more_draft_steps_than_heads_are_refused() -> None:
    config = small("step3_5")
    params = jax.eval_shape(partial(initial_parameters, config), jax.random.key(0))
    with pytest.raises(ValueError, match="mtp_steps is 4, but each head makes one draft, and there are 3"):
        jax.eval_shape(lambda params: predict(config, params, jnp.zeros((1, 8), jnp.int32), 4, 1), params)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_config_comes_back_from_its_description(name: str) -> None:
    config = FAMILIES[name].demo_config
    assert from_plain(type(config), json.loads(json.dumps(asdict(config)))) == config


def test_the_command_line_knows_every_family_and_takes_that_of_a_run(tmp_path: Path) -> None:
    parser = cli.add_parser(argparse.ArgumentParser().add_subparsers())
    assert set(cli.FAMILIES) == set(FAMILIES)
    folder, other = RunFolder(tmp_path / "run"), RunFolder(tmp_path / "other")

    def chosen(*options: str, start: RunFolder | None = None) -> str:
        return cli.chosen_family(parser.parse_args(["--out", str(folder.path), *options]), folder, start).name

    assert (chosen(), chosen("--family", "gemma4")) == ("qwen3_5", "gemma4")
    other.path.mkdir()
    other.write(RECIPE, small("step3_5"), {}, Tokenizer(models.BPE()))
    assert chosen(start=other) == "step3_5"
    with pytest.raises(ValueError, match=f"--family is gemma4, but {other.path} holds a run of a step3_5 model"):
        chosen("--family", "gemma4", start=other)
