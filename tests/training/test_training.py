"""The training loop on a tiny model: it learns, resumes bit for bit, and what it writes can be loaded."""

import io
import json
import signal
from dataclasses import replace
from functools import partial

import jax
import numpy as np
import pytest
from rich.console import Console

import checkpoints
from specjax.cli.train import add_parser, chosen_recipe
from specjax.models.qwen3_5 import Qwen35Config, hybrid_layer_types
from specjax.models.registry import FAMILIES
from specjax.training.corpus import Corpus, Document
from specjax.training.export import export_gguf, load_params
from specjax.training.families.qwen3_5 import FAMILY
from specjax.training.initial import initial_parameters
from specjax.training.loss import cross_entropies, head_loss, predict, training_loss
from specjax.training.optimizer import from_trainable, learning_rate, to_trainable
from specjax.training.progress import Progress
from specjax.training.recipe import Recipe
from specjax.training.run import check_same, run
from specjax.training.run_folder import RunFolder
from specjax.training.trainer import train_step

CONFIG = Qwen35Config(
    vocab_size=270,
    width=32,
    layer_types=hybrid_layer_types(2, full_attention_interval=2),
    mlp_width=48,
    num_heads=2,
    num_kv_heads=1,
    head_width=16,
    rope_width=8,
    rope_theta=10_000.0,
    rope_sections=(2, 1, 1, 0),
    conv_width=4,
    linear_key_heads=1,
    linear_value_heads=2,
    linear_key_width=16,
    linear_value_width=16,
    context_length=64,
    tied_embeddings=True,
    mtp_layers=1,
)
RECIPE = Recipe(
    steps=12, batch_size=2, length=24, learning_rate=1e-2, warmup_steps=2, mtp_steps=2, eval_every=6, save_every=5
)
HEAD_RECIPE = replace(RECIPE, steps=8, mtp_sequences=2, head_only=True, optimizer="adamw")  # compiled faster than Muon
CORPUS = Corpus(
    train=tuple(Document(f"{i}.py", f"def function_{i}(x):\n    return x + {i}\n\n\n" * 4) for i in range(12)),
    held_out=tuple(Document(f"held_{i}.py", f"def held_{i}(x):\n    return x * {i}\n" * 4) for i in range(3)),
)


def quiet() -> Progress:
    return Progress(Console(file=io.StringIO()))


def assert_same(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


def random_tokens(*shape):
    return np.random.default_rng(1).integers(0, CONFIG.vocab_size, shape, dtype=np.int32)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = RunFolder(tmp_path_factory.mktemp("trained"))
    return folder, run(folder, CONFIG, RECIPE, CORPUS, quiet())


def test_the_losses_of_trunk_and_mtp_decrease(trained):
    folder, outcome = trained
    assert outcome.finished
    lines = [line for line in folder.read_metrics() if line["event"] == "step"]
    assert [line["step"] for line in lines] == list(range(1, 13))
    for name in ("loss", "mtp_loss_1", "mtp_loss_2"):
        assert lines[-1][name] < lines[0][name] - 1.0
    held_out = [line for line in folder.read_metrics() if line["event"] == "held_out"]
    assert [line["step"] for line in held_out] == [6, 12]
    assert 0 <= held_out[-1]["mtp_agreement_1"] <= 1
    report = json.loads(folder.report.read_text())
    assert report["parameters"] == sum(x.size for x in jax.tree.leaves(outcome.params))
    assert report["bits_per_byte"] == pytest.approx(
        report["nats_per_token"] * report["held_out_tokens"] / report["held_out_bytes"] / np.log(2)
    )
    assert folder.loss_plot.read_bytes().startswith(b"\x89PNG")


def test_an_interrupted_run_resumes_bit_for_bit(trained, tmp_path):
    _, uninterrupted = trained
    folder = RunFolder(tmp_path)

    class Interrupting(Progress):
        def step(self, step, values):
            if step == 7:
                signal.raise_signal(signal.SIGINT)

    first = run(folder, CONFIG, RECIPE, CORPUS, Interrupting(Console(file=io.StringIO())))
    assert (first.finished, int(first.state.step)) == (False, 7)
    described = folder.description.stat().st_mtime_ns
    second = run(folder, CONFIG, RECIPE, CORPUS, quiet())
    assert second.finished
    assert folder.description.stat().st_mtime_ns == described
    assert_same(second.state, uninterrupted.state)
    assert_same(load_params(folder), uninterrupted.params)


def test_the_steps_may_change_until_a_step_was_taken_at_another_rate(trained):
    folder, _ = trained
    check_same(folder, RECIPE, replace(RECIPE, steps=20), CONFIG, taken=8)
    for steps, taken in ((20, 10), (13, 12), (5, 8)):
        with pytest.raises(ValueError, match=f"took {taken} of 12 steps; with {steps} steps"):
            check_same(folder, RECIPE, replace(RECIPE, steps=steps), CONFIG, taken)


def test_a_run_is_not_continued_on_other_text(trained, tmp_path):
    other = replace(CORPUS, train=CORPUS.train[1:])
    folder = RunFolder(tmp_path)
    folder.write(RECIPE, CONFIG, CORPUS.provenance.to_dict(), trained[0].read_tokenizer())
    with pytest.raises(ValueError, match="holds a run on other text"):
        run(folder, CONFIG, RECIPE, other, quiet())
    assert folder.read_provenance()["sha256"] == CORPUS.provenance.sha256


def test_a_finished_run_can_be_asked_for_again_without_its_text(trained):
    folder, outcome = trained
    kept = {path: path.read_bytes() for path in (folder.description, folder.tokenizer, folder.report, folder.metrics)}
    again = run(folder, CONFIG, RECIPE, Corpus((), ()), quiet())
    assert again.finished
    assert_same(again.params, outcome.params)
    assert {path: path.read_bytes() for path in kept} == kept


def test_too_little_text_leaves_no_run_behind(tmp_path):
    folder = RunFolder(tmp_path / "run")
    with pytest.raises(ValueError, match="fewer than one batch of 2 x 500"):
        run(folder, CONFIG, replace(RECIPE, length=500), CORPUS, quiet())
    assert not folder.path.exists()


def test_a_torn_line_of_the_metrics_is_ended_and_passed_over(tmp_path):
    folder = RunFolder(tmp_path)
    folder.log("step", 1, loss=3.0)
    with folder.metrics.open("a") as file:
        file.write('{"event": "step", "st')
    assert [line["step"] for line in folder.read_metrics()] == [1]
    folder.log("step", 2, loss=2.0)
    assert [line["step"] for line in folder.read_metrics()] == [1, 2]


def test_a_description_that_cannot_be_written_whole_leaves_the_old_one(trained, tmp_path, monkeypatch):
    before = trained[0].read_tokenizer()
    folder = RunFolder(tmp_path)
    folder.write(RECIPE, CONFIG, {}, before)
    folder.write_report({"loss": 1.0})
    files = {path: path.read_bytes() for path in tmp_path.iterdir()}

    def full_disk(path, text, **_):
        path.write_bytes(text[:9].encode())
        raise OSError("no space left on device")

    monkeypatch.setattr("pathlib.Path.write_text", full_disk)
    for write in (
        lambda: folder.write(replace(RECIPE, steps=13), CONFIG, {}, before),
        lambda: folder.write_report({"loss": 2.0}),
    ):
        with pytest.raises(OSError, match="no space"):
            write()
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == files


def test_a_run_of_other_settings_is_not_continued(trained):
    folder, _ = trained
    with pytest.raises(ValueError, match="seed: 0 -> 1"):
        run(folder, CONFIG, replace(RECIPE, seed=1), CORPUS, quiet())


def test_the_exported_gguf_has_the_trained_model_and_its_vocabulary(trained, tmp_path):
    folder, outcome = trained
    export_gguf(folder, tmp_path / "tiny.gguf", "F32")
    loaded = checkpoints.load(tmp_path / "tiny.gguf", FAMILIES)
    assert_same(dict(loaded.params), outcome.params)
    text = "def f(x):\n        return x\n"
    assert loaded.tokenizer.encode(text) == folder.read_tokenizer().encode(text).ids
    assert loaded.tokenizer.eos_ids == {folder.read_tokenizer().token_to_id("<|endoftext|>")}


def test_trainable_parameters_are_the_parameters_with_decay_rates_on_a_log_scale():
    params = initial_parameters(CONFIG, jax.random.key(0))
    there_and_back = from_trainable(to_trainable(params))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), there_and_back, params)
    far = jax.tree.map(lambda x: x + 100 * np.sign(x), to_trainable(params))
    assert (from_trainable(far)["target"]["layers_0"]["delta_net"]["a"] < 0).all()


def test_the_mtp_loss_leaves_embedding_and_output_head_alone():
    params = initial_parameters(CONFIG, jax.random.key(0))
    tokens = random_tokens(2, 12)

    @jax.jit
    @jax.grad
    def gradient(params):
        return cross_entropies(predict(CONFIG, params, tokens, 1, 1), tokens)[1]

    target = gradient(params)["target"]
    unused = np.setdiff1d(np.arange(CONFIG.vocab_size), np.asarray(tokens))
    assert not np.asarray(target["embed"]["weight"])[unused].any()  # an output head has gradient in every row
    assert np.asarray(target["layers_0"]["mlp"]["up_proj"]["weight"]).any()  # the hidden rows do train the trunk


def test_without_weight_the_mtp_block_is_not_run():
    params = initial_parameters(CONFIG, jax.random.key(0))
    tokens = random_tokens(1, 8)
    loss = partial(training_loss, CONFIG, mtp_steps=0, mtp_sequences=1, mtp_weight=0.0)
    total, parts = jax.jit(loss)(params, tokens)
    assert list(parts) == ["loss"]
    assert total == parts["loss"]


def test_the_number_of_steps_has_no_influence_before_the_decay():
    short, long = (learning_rate(Recipe(steps=steps, warmup_steps=10)) for steps in (100, 1000))
    assert [float(short(i)) for i in range(60)] == [float(long(i)) for i in range(60)]
    assert short(0) > 0
    assert short(99) < short(61) < short(59)
    assert short(100) == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [("steps", 0), ("optimizer", "sgd"), ("mtp_weight", -1.0), ("mtp_sequences", 9), ("mtp_steps", 0)],
)
def test_a_recipe_out_of_range_names_the_field(field, value):
    with pytest.raises(ValueError, match=field):
        replace(RECIPE, **{field: value})


def test_the_command_line_starts_from_the_runs_own_recipe(trained):
    import argparse

    folder, _ = trained
    parser = add_parser(argparse.ArgumentParser().add_subparsers())
    assert chosen_recipe(parser.parse_args(["--out", str(folder.path)]), folder, FAMILY) == RECIPE
    longer = chosen_recipe(parser.parse_args(["--out", str(folder.path), "--steps", "20"]), folder, FAMILY)
    assert longer == replace(RECIPE, steps=20)
    with pytest.raises(ValueError, match="new runs"):
        chosen_recipe(parser.parse_args(["--out", str(folder.path), "--minutes", "1"]), folder, FAMILY)
    with pytest.raises(ValueError, match="holds one of a whole model"):
        chosen_recipe(parser.parse_args(["--out", str(folder.path), "--head-of", "elsewhere"]), folder, FAMILY)


def test_a_head_run_that_died_before_its_first_checkpoint_starts_again_and_trains_the_head_alone(trained, tmp_path):
    """The trunk stays as it was, and the head comes closer to it."""
    before_folder, before = trained
    folder = RunFolder(tmp_path)
    folder.write(HEAD_RECIPE, CONFIG, CORPUS.provenance.to_dict(), before_folder.read_tokenizer())
    with pytest.raises(ValueError, match="no checkpoint yet, and a head is trained on the trunk of another run"):
        run(folder, CONFIG, HEAD_RECIPE, CORPUS, quiet())
    compiled = train_step._cache_size()
    after = run(folder, CONFIG, HEAD_RECIPE, CORPUS, quiet(), start=before_folder)
    assert after.finished
    assert train_step._cache_size() == compiled + 1, "all steps must be one program, whatever was read from files"
    assert_same(before.params["target"], after.params["target"])
    assert folder.read_tokenizer().get_vocab() == before_folder.read_tokenizer().get_vocab()
    tokens = random_tokens(2, 12)

    @jax.jit
    def distance(params):
        return head_loss(CONFIG, params, tokens, mtp_steps=2, mtp_sequences=2)[0]

    # Arrays of NumPy: what was read and what was trained would be two programs.
    assert distance(jax.device_get(after.params)) < distance(jax.device_get(before.params))
