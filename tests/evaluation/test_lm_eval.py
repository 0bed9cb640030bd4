"""Requests of lm-evaluation-harness have the answers that it gets of transformers for the same weights."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

import specjax
from specjax.errors import PromptError, SpecjaxError
from specjax.evaluation.lm_eval import NAME, Answers, register
from specjax.evaluation.lm_eval.arguments import Limits, decoding, from_arguments
from specjax.evaluation.lm_eval.encoding import encode, windows
from specjax.runtime.scoring_plan import plan

FIXTURES = Path(__file__).parents[1] / "fixtures"
TASKS = FIXTURES / "lm_eval"
SCRIPT = runpy.run_path(str(FIXTURES / "make_lm_eval.py"))
MODELS, MAX_LENGTHS = SCRIPT["MODELS"], SCRIPT["MAX_LENGTHS"]
WANT = json.loads((TASKS / "results.json").read_text())
ATOL = 1e-4


@dataclass(frozen=True)
class Request:
    """As the harness's `Instance`, as far as a model looks at it."""

    args: tuple[Any, ...]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folders = {name: FIXTURES / path for name, path in MODELS.items()}
    beginning = tmp_path_factory.mktemp("models") / "begins"
    return {**folders, "begins": SCRIPT["with_beginning"](folders["begins"], beginning)}


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=[pytest.mark.slow] * (name == "qwen3")) for name in MODELS]
)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def model(name: str, folders: dict[str, Path]) -> specjax.Model:
    return specjax.load(folders[name], drafter="ngram")


def asked(name: str, task: str) -> tuple[list[Request], list[Any]]:
    """What the harness asked of transformers, and what it was told."""
    requests = WANT[name][task]["requests"]
    return [Request(tuple(each["args"])) for each in requests], [each["answer"] for each in requests]


def answers(model: specjax.Model, task: str, **limits: Any) -> Answers:
    options = specjax.GenerateOptions(draft=2)
    return Answers(model, options, Limits(max_length=MAX_LENGTHS[task], **limits))


def test_choices(name: str, model: specjax.Model) -> None:
    requests, want = asked(name, "tiny_choices")
    told: dict[int, tuple[float, bool]] = {}
    got = answers(model, "tiny_choices", batch_size=8).loglikelihood(requests, told.__setitem__)
    assert [value for value, _ in got] == pytest.approx([value for value, _ in want], abs=ATOL)
    assert [greedy for _, greedy in got] == [greedy for _, greedy in want]
    assert told == dict(enumerate(got))


def test_texts(name: str, model: specjax.Model) -> None:
    requests, want = asked(name, "tiny_text")
    told: dict[int, float] = {}
    got = answers(model, "tiny_text").loglikelihood_rolling(requests, told.__setitem__)
    assert got == pytest.approx(want, abs=ATOL)
    assert told == dict(enumerate(got))


def test_generated_texts(name: str, model: specjax.Model) -> None:
    """With drafts, of which greedy decoding accepts some."""
    requests, want = asked(name, "tiny_generation")
    told: dict[int, str] = {}
    assert answers(model, "tiny_generation").generate_until(requests, told.__setitem__) == want
    assert told == dict(enumerate(want))


@pytest.fixture(scope="module")
def llama(folders: dict[str, Path]) -> specjax.Model:
    return specjax.load(folders["begins"], drafter="ngram")


def test_choices_of_a_question_and_examples_of_all_are_fed_once(llama: specjax.Model) -> None:
    requests, _ = asked("begins", "tiny_choices")
    assert llama.tokenizer is not None
    texts = [(encode(llama.tokenizer, a), encode(llama.tokenizer, a + b)) for a, b in (each.args for each in requests)]
    prompts, continuations = zip(*((a, b[len(a) :]) for a, b in texts), strict=True)
    separate = sum(len(whole) - 1 for _, whole in texts)
    together = sum(cluster.num_fed for cluster in plan(prompts, continuations, 16))
    assert separate > 5 * together


def test_long_texts_are_cut_into_windows_that_predict_each_token_once() -> None:
    assert list(windows([], 9, 4)) == []
    assert list(windows([0, 1], 9, 4)) == [([9], [0, 1])]
    assert list(windows(list(range(10)), 99, 4)) == [
        ([99], [0, 1, 2, 3]),
        ([3], [4, 5, 6, 7]),
        ([5, 6, 7], [8, 9]),
    ]


def test_an_empty_context_is_the_token_that_begins_a_text(llama: specjax.Model) -> None:
    ours = answers(llama, "tiny_choices")
    (got,) = ours.loglikelihood([Request(("", "def return"))])
    tokens = llama.encode_further("def return")
    assert got[0] == pytest.approx(sum(llama.score([ours.prefix], tokens)), abs=ATOL)
    written = Request(("", "<|im_start|>def return"))
    assert ours.loglikelihood([written])[0] == pytest.approx(got, abs=ATOL)


@pytest.mark.slow
def test_equal_requests_draw_differently_and_again_the_same(llama: specjax.Model) -> None:
    ours = answers(llama, "tiny_generation")
    sampled = {"do_sample": True, "temperature": 1.0, "max_gen_toks": 12}
    requests = [Request(("def", sampled)), Request(("class", sampled)), Request(("def", sampled))]
    first, _, third = texts = ours.generate_until(requests)
    assert first != third
    assert ours.generate_until(requests) == texts
    assert ours.generate_until([requests[2]]) == [first]  # whatever else is asked
    greedy = Request(("def", {"do_sample": False, "temperature": 1.0, "max_new_tokens": 12}))
    assert ours.generate_until([greedy])[0] == llama.generate("def", max_tokens=12, draft=0).text


def test_a_control_token_among_the_stop_strings_ends_the_text(llama: specjax.Model) -> None:
    ours = answers(llama, "tiny_generation")
    request = ours._request("def", decoding({"until": ["<|im_start|>", "x", "\n\n"]}, ours.options, 4), 0)
    assert llama.tokenizer is not None
    begin = llama.tokenizer.vocabulary.special_ids["bos"]
    assert set(request.settings.stop_tokens) == {*llama.tokenizer.eos_ids, begin}


@pytest.mark.parametrize(
    ("arguments", "want"),
    [
        ({}, {"temperature": 0.0, "max_tokens": 7, "stop": ()}),
        ({"until": "x", "max_gen_toks": 3}, {"max_tokens": 3, "stop": ("x",)}),
        ({"do_sample": True}, {"temperature": 1.0}),
        ({"do_sample": True, "temperature": 0.5, "top_p": 0.9}, {"temperature": 0.5, "top_p": 0.9}),
        ({"do_sample": False, "temperature": 0.5}, {"temperature": 0.0}),
        ({"temperature": 0.5, "until": ["", "a"]}, {"temperature": 0.5, "stop": ("a",)}),
        ({"max_tokens": 5, "max_gen_toks": 4, "seed": 3}, {"max_tokens": 4, "seed": 3, "draft": 1}),
    ],
)
def test_how_requests_decode(arguments: dict[str, Any], want: dict[str, Any]) -> None:
    options = decoding(arguments, specjax.GenerateOptions(draft=1), 7)
    assert {key: getattr(options, key) for key in want} == want


def test_what_cannot_be_done_is_said(llama: specjax.Model, folders: dict[str, Path]) -> None:
    ours = answers(llama, "tiny_text")
    with pytest.raises(SpecjaxError, match="num_beams=4, which specjax does not do"):
        ours.generate_until([Request(("a", {"num_beams": 4}))])
    with pytest.raises(SpecjaxError, match="no room for a prompt in 40"):
        ours.generate_until([Request(("a", {"max_gen_toks": 40}))])
    with pytest.raises(PromptError, match="nothing to score: ''"):
        ours.loglikelihood([Request(("a", ""))])
    with pytest.raises(PromptError, match="at most 40 fit"):
        ours.loglikelihood([Request(("a", "#" * 41))])
    with pytest.raises(SpecjaxError, match="max_length is 1025; give a length from 1 to the model's context, 1024"):
        Answers(llama, ours.options, Limits(max_length=1025))
    with pytest.raises(SpecjaxError, match="has no chat template"):
        ours.apply_chat_template([{"role": "user", "content": "a"}])
    with pytest.raises(SpecjaxError, match="has temperature, which is not for specjax"):
        from_arguments({"pretrained": "x", "temperature": 1})
    with pytest.raises(SpecjaxError, match="batch_size is 'many'"):
        answers(llama, "tiny_text", batch_size="many").loglikelihood([Request(("a", " b"))])


def test_arguments_of_the_command_line(folders: dict[str, Path]) -> None:
    given = {"pretrained": str(folders["llama"]), "drafter": ["ngram"], "draft": "auto", "packed": "off", "top_k": None}
    model, options, limits = from_arguments({**given, "batch_size": "auto", "device": "cuda", "max_gen_toks": 5})
    assert model.drafter is not None
    assert options == specjax.GenerateOptions(draft="auto")
    assert (limits.rows, limits.max_gen_toks) == (None, 5)


def test_chat_templates(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "chat"
    folder.mkdir()
    for file in folders["begins"].iterdir():
        (folder / file.name).symlink_to(file)
    (folder / "chat_template.jinja").write_text(
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}"
        "[{{ m.role }}] {{ m.content | trim }}\n{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    ours = answers(specjax.load(folder), "tiny_choices")
    said = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "def"}]
    assert ours.apply_chat_template(said) == "[user] def\n[assistant]"  # the first token is added by encoding
    begun = [*said, {"role": "assistant", "content": "class A "}]
    text = ours.apply_chat_template(begun, add_generation_prompt=False)
    assert text == "[user] def\n[assistant] class A"


@pytest.mark.harness
@pytest.mark.parametrize("task", MAX_LENGTHS)
def test_the_harness_itself(task: str, folders: dict[str, Path], tmp_path: Path) -> None:
    """Its command line, with `--model specjax`, has the figures that it has with transformers."""
    settings = f"pretrained={folders['llama']},drafter=ngram,draft=2,max_length={MAX_LENGTHS[task]}"
    command = [sys.executable, "-m", "specjax.evaluation.lm_eval", "run", "--model", "specjax", "--tasks", task]
    command += ["--model_args", settings, "--include_path", ".", "--output_path", str(tmp_path)]
    environment = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(tmp_path / "cache")}
    ran = subprocess.run(command, cwd=TASKS, env={**os.environ, **environment}, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    check_figures(tmp_path, task)


@pytest.mark.harness
def test_the_entry_point_names_the_registered_class() -> None:
    """A registry to which the entry point is all that is known, as in releases that read entry points."""
    from lm_eval.api.model import LM
    from lm_eval.api.registry import Registry

    (found,) = entry_points(group="lm_eval.models", name=NAME)
    models: Any = Registry("model", base_cls=LM)
    models.register(NAME, target=found)
    assert models.get(NAME) is register()


def check_figures(folder: Path, task: str) -> None:
    """What the harness has written there for the model "llama" are the figures that it has with transformers."""
    (results,) = folder.rglob("results_*.json")
    got = json.loads(results.read_text())["results"][task]
    for figure, want in WANT["llama"][task]["figures"].items():
        assert got[figure] == pytest.approx(want, rel=1e-5), figure
