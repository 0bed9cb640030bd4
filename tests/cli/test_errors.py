from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from gguf import GGUFWriter
from program import Cli
from safetensors.numpy import load_file, save_file
from small_model import CONFIG, agreeing_params, byte_tokenizer

import checkpoints
import specjax
from pallas_kernels.files import cache_folder
from specjax.cli.options import check_output
from specjax.cli.runtime import UsageError
from specjax.decoding.settings import DraftConfig
from specjax.models.registry import FAMILIES

PROMPT = ("--prompt", "def f(")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "hf"
    checkpoints.write_hf(path, FAMILIES, CONFIG, agreeing_params(CONFIG), byte_tokenizer())
    return path


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--prompt", ""), "the prompt is empty"),
        (("--prompt", "a\udcff"), "not Unicode text: surrogates not allowed at character 1, '\\udcff'"),
        (("--tokens", ""), "the prompt is empty"),
        (("--tokens", "1,272"), "outside the vocabulary of 272 (0 to 271): [272]"),
        (("--tokens=-1,2",), "outside the vocabulary of 272 (0 to 271): [-1]"),
        (("--tokens", ",".join(["1"] * 128)), "128 tokens; the model's context of 128 must also hold"),
        (("--tokens", "1,x"), "'1,x' is not a list of token ids"),
        (("--tokens", "1", *PROMPT), "not allowed with argument"),
        (("--prompt-file", "absent.txt"), "absent.txt: No such file"),
        ((), "no prompt"),
        ((*PROMPT, "--draft", 16), "a round verifies at most 16 tokens"),
        ((*PROMPT, "--draft", -1), "n_max is -1"),
        ((*PROMPT, "--draft", 2, "--draft-n-min", 3), "every draft would be dropped"),
        ((*PROMPT, "--draft", 0, "--draft-p-min", 0.5), "--draft-p-min: of no use with --draft 0"),
        (
            (*PROMPT, "--draft-by", "mtp", "--draft-by", "ngram"),
            "draft_by is 'ngram', but the model's drafters are 'mtp'",
        ),
        ((*PROMPT, "--draft", 0, "--compare"), "nothing to compare"),
        ((*PROMPT, "--draft", 0, "--trace", "never.ndjson"), "plain decoding makes none"),
        ((*PROMPT, "--trace", "absent/t.ndjson"), "there is no folder absent"),
        ((*PROMPT, "--trace", "."), "it exists and is not a file"),
        ((*PROMPT, "--max-tokens", 0), "max_tokens is 0"),
        ((*PROMPT, "--temperature", -1), "temperature is -1.0"),
        ((*PROMPT, "--temperature", 1, "--top-p", 2), "top_p is 2.0"),
        ((*PROMPT, "--seed", -1), "seed is -1"),
        ((*PROMPT, "--accept", "always"), "invalid choice: 'always'"),
        ((*PROMPT, "--temprature", 1), "unrecognized arguments: --temprature 1"),
    ],
    ids=str,
)
def test_bad_options_are_refused(
    options: tuple, message: str, cli: Cli, gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in cli("generate", "--model", gguf, *options).error
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kv_type_k": "int8"}, "kv_type_k is 'int8'; known are 'f32', 'f16', 'bf16', 'q8_0'"),
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"draft": -1}, "n_max is -1"),
        ({"draft": 16}, "a round verifies at most 16 tokens"),
        ({"draft": DraftConfig(n_min=2, p_min=0.5), "temperature": 1.0}, "would bias rejection sampling"),
    ],
    ids=str,
)
def test_options_are_checked_before_there_is_a_model(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        specjax.GenerateOptions(**options)


def test_a_prompt_file_must_be_text(cli: Cli, gguf: Path, tmp_path: Path) -> None:
    path = tmp_path / "prompt.bin"
    path.write_bytes(b"\xff\xfe\x00")
    assert f"{path} is not UTF-8" in cli("generate", "--model", gguf, "--prompt-file", path).error


def test_a_missing_file(cli: Cli, tmp_path: Path) -> None:
    for command in (("generate", *PROMPT), ("logits", "--tokens", 1, "--out", tmp_path / "l.npy")):
        assert "absent.gguf: no such file" in cli(*command, "--model", tmp_path / "absent.gguf").error
    for reading in ("inspect", "verify"):
        assert "absent.gguf: no such file" in cli(reading, tmp_path / "absent.gguf").error
    assert "/dev/null: not a regular file" in cli("inspect", "/dev/null").error
    assert not list(tmp_path.iterdir())


def test_a_truncated_file(cli: Cli, gguf: Path, tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(gguf.read_bytes()[:-5000])
    assert "truncated" in cli("generate", "--model", path, *PROMPT).error


def test_a_wrong_architecture_is_named_with_the_known_ones(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "mamba.gguf"
    writer = GGUFWriter(path, "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    message = cli("generate", "--model", path, *PROMPT).error
    assert "'mamba'" in message
    assert "qwen35, qwen35moe" in message


def test_every_mismatched_tensor_is_listed(cli: Cli, folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    missing = ["model.norm.weight", "mtp.fc.weight"]
    for name in missing:
        tensors["extra." + name] = tensors.pop(name)
    save_file(tensors, folder / "model.safetensors")
    message = cli("generate", "--model", folder, *PROMPT).error
    assert all(name in message and "extra." + name in message for name in missing)
    ran = cli("inspect", folder, "--json")
    assert ran.status == 1
    assert all(name in json.loads(ran.out)["problems"] for name in missing)
    assert "would not load" in cli("inspect", folder).out


def test_text_needs_a_tokenizer(cli: Cli, folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    assert "no tokenizer.json" in cli("generate", "--model", folder, *PROMPT).error


def test_drafts_need_the_head(cli: Cli, headless: Path) -> None:
    assert "has no MTP head" in cli("generate", "--model", headless, *PROMPT, "--draft", 3).error
    assert "nothing to compare" in cli("generate", "--model", headless, *PROMPT, "--compare").error


@pytest.mark.filterwarnings("default::checkpoints.MissingMTPWarning")
def test_a_declared_head_that_is_absent_is_said_in_one_line(cli: Cli, folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    save_file({name: x for name, x in tensors.items() if not name.startswith("mtp.")}, folder / "model.safetensors")
    ran = cli("inspect", folder)
    assert ran.status == 0
    assert ran.err.startswith("specjax: warning: ")
    assert ran.err.count("\n") == 1
    assert "no: plain decoding, unless a drafter is given" in ran.out


@pytest.mark.filterwarnings("default:.*no effect on greedy:UserWarning")
def test_filters_without_a_temperature_are_said_to_be_idle(cli: Cli, gguf: Path) -> None:
    ran = cli("generate", "--model", gguf, "--top-k", 4, "--min-p", 0.1, "--prompt", "")
    assert "specjax: warning: --top-k, --min-p: no effect on greedy decoding" in ran.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("generate", "--promt", "x"), "--promt x; is --prompt meant? (try: specjax generate --help)"),
        (
            ("eval", "--prompts", "p", "--out", "o", "--max_tokens=3"),
            "is --max-tokens meant? (try: specjax eval --help)",
        ),
        (("verify", "m.gguf", "--nonsense"), "unrecognized arguments: --nonsense (try: specjax verify --help)"),
        (("generate", "m.gguf"), "unrecognized arguments: m.gguf (try: specjax generate --help)"),
        (("--verison",), "--verison; is --version meant? (try: specjax --help)"),
        (("generat",), "invalid choice: 'generat'"),
    ],
)
def test_what_is_mistyped_is_answered_by_its_command_and_with_what_looks_like_it(
    arguments: tuple[str, ...], message: str, cli: Cli
) -> None:
    assert message in cli(*arguments).error


def test_no_command_prints_the_help(cli: Cli) -> None:
    ran = cli()
    assert ran.status == 2
    assert "specjax generate" in ran.err


@pytest.mark.parametrize("command", ["generate", "eval", "logits", "inspect", "train", "convert", "verify"])
def test_every_command_teaches_by_example(command: str, cli: Cli) -> None:
    ran = cli(command, "--help")
    assert ran.status == 0
    assert f"  specjax {command} " in ran.out.split("examples:")[1]


def test_training_without_its_packages_names_the_extra(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optax", None)
    assert "specjax[train]" in cli("train", "--out", tmp_path / "run").error


def test_a_head_of_nothing_is_refused(cli: Cli, tmp_path: Path) -> None:
    ran = cli("train", "--head-of", tmp_path / "mistyped", "--out", tmp_path / "run")
    assert "mistyped holds no training run" in ran.error
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("forbidden", [".", "l.npy"])
def test_a_file_is_replaced_only_where_it_and_its_folder_may_be_changed(
    forbidden: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "l.npy"
    path.touch()
    check_output(path)
    monkeypatch.setattr("os.access", lambda asked, _: asked != tmp_path / forbidden)
    with pytest.raises(UsageError, match=r"l\.npy: permission denied"):
        check_output(path)


def test_an_export_needs_its_folder(cli: Cli, tmp_path: Path) -> None:
    command = ("train", "--out", tmp_path / "run", "--export", tmp_path / "absent" / "model.gguf")
    assert "there is no folder" in cli(*command).error
    assert "it exists and is not a file" in cli(*command[:-1], tmp_path).error


def _raise(error: BaseException) -> Callable[..., None]:
    def run(*_: object, **__: object) -> None:
        raise error

    return run


def test_an_interrupt_exits_with_130(cli: Cli, gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specjax.runtime.loading.load", _raise(KeyboardInterrupt()))
    ran = cli("generate", "--model", gguf, *PROMPT)
    assert ran.status == 130
    assert ran.err == "specjax: interrupted\n"


def test_want_of_memory_is_said(cli: Cli, gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specjax.runtime.loading.load", _raise(RuntimeError("RESOURCE_EXHAUSTED: 1 TB")))
    assert "not enough memory" in cli("generate", "--model", gguf, *PROMPT).error


def test_a_bug_keeps_its_traceback(cli: Cli, gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specjax.runtime.loading.load", _raise(TypeError("oh")))
    with pytest.raises(TypeError):
        cli("generate", "--model", gguf, *PROMPT)


def test_debugging_shows_where_an_error_comes_from(cli: Cli, gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECJAX_DEBUG", "1")
    with pytest.raises(ValueError, match="no prompt"):
        cli("generate", "--model", gguf)


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache_folder() is None
    monkeypatch.setenv("SPECJAX_CACHE", "elsewhere")
    assert cache_folder() == Path("elsewhere")
    monkeypatch.delenv("SPECJAX_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "specjax" / "xla"


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys; from specjax.cli.main import main; status = main(['--help']);"
        "sys.exit(status or any(name in sys.modules for name in ('jax', 'numpy', 'rich', 'checkpoints')))"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_a_reader_that_leaves_is_no_error(form: tuple[str, ...], gguf: Path) -> None:
    command = [sys.executable, "-m", "specjax", "inspect", str(gguf), "--tensors", *form]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 141


def test_a_closed_output_is_no_error(gguf: Path) -> None:
    command = [sys.executable, "-m", "specjax", "inspect", str(gguf)]
    ran = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *command], capture_output=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's /dev/full")
def test_a_full_output_is_named(gguf: Path) -> None:
    with open("/dev/full", "wb") as full:
        command = [sys.executable, "-m", "specjax", "inspect", str(gguf)]
        ran = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (2, "specjax: error: standard output: No space left on device\n")
