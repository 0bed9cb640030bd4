"""`specjax chat`: lines in, replies out; what cannot be done is said, and a reply can be broken off."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from program import Cli, Ran
from small_model import CONFIG, agreeing_params, byte_tokenizer

import checkpoints
import specjax
from specjax.models.registry import FAMILIES
from specjax.sessions.chat import Chat, open_chat

TEMPLATE = (
    "{% for message in messages %}{{ message.role[0] }}:{{ message.content }}<|endoftext|>{% endfor %}"
    "{% if messages[-1].content == 'no' %}{{ raise_exception('not that') }}{% endif %}a:"
)
LENGTH = 12
OPTIONS = ("--max-tokens", LENGTH, "--ignore-eos")


@pytest.fixture
def say(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """Runs the program with these lines on its standard input."""

    def run(lines: bytes | str, *argv: object) -> Ran:
        data = lines.encode() if isinstance(lines, str) else lines
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        return cli("chat", *argv)

    return run


@pytest.fixture(scope="session")
def talkative(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small model with a chat template."""
    vocabulary = replace(byte_tokenizer().vocabulary, chat_template=TEMPLATE)
    path = tmp_path_factory.mktemp("chat") / "talkative.gguf"
    tokenizer = checkpoints.tokenizers.gguf.from_vocabulary(vocabulary)
    checkpoints.write_gguf(path, FAMILIES, CONFIG, agreeing_params(CONFIG), tokenizer)
    return path


def replies(chat: Chat, *lines: str) -> list[str]:
    texts = []
    for line in lines:
        reply, chat = chat.say(line)
        texts.append(reply.text.removesuffix("\n") + "\n")
    return texts


def fresh(model: specjax.Model, tokens: list[int]) -> list[int]:
    """What a session says that has been told all at once, by the programs of the others."""
    return model.session(max_tokens=LENGTH, ignore_eos=True).generate(tokens)[0].tokens


def test_replies_go_to_stdout_and_what_they_cost_to_stderr(
    say: Callable[..., Ran], gguf: Path, model: specjax.Model
) -> None:
    ran = say("def f(\n\nx):\n", "--model", gguf, *OPTIONS)
    session = model.session(max_tokens=LENGTH, ignore_eos=True)
    assert ran.status == 0
    assert ran.out == "".join(replies(open_chat(session), "def f(", "x):"))
    costs = re.findall(
        r"12 tokens at \d+ tok/s, (\S+) tokens a round; prompt of (\d+): (\d+) reused, (\d+) fed", ran.err
    )
    assert [cost[1:] for cost in costs] == [("6", "0", "6"), ("23", "17", "6")]
    assert all(1 <= float(cost[0]) <= 4 for cost in costs)
    assert "specjax: 12 tokens" in ran.err
    quiet = say("def f(\n", "--model", gguf, *OPTIONS, "--quiet")
    assert quiet.err == ""
    assert ran.out.startswith(quiet.out)


def test_the_text_without_a_template_is_one_text(model: specjax.Model) -> None:
    session = model.session(max_tokens=LENGTH, ignore_eos=True)
    first, chat = open_chat(session, "# s").say("a")
    prompt = model.encode("# s\na\n")
    assert first.prompt_tokens == prompt
    second, chat = chat.say("b")
    between = "b\n" if first.text.endswith("\n") else "\nb\n"
    assert second.prompt_tokens == [*prompt, *first.tokens, *model.encode(between)]
    assert second.tokens == fresh(model, second.prompt_tokens)
    assert [message["role"] for message in chat.messages] == ["system", "user", "assistant", "user", "assistant"]


def test_a_template_writes_the_conversation(say: Callable[..., Ran], talkative: Path) -> None:
    model = specjax.load(talkative)
    session = model.session(max_tokens=LENGTH)
    first, chat = open_chat(session, "S").say("hi")
    assert model.tokenizer is not None
    assert model.tokenizer.decode(first.prompt_tokens) == "s:S<|endoftext|>u:hi<|endoftext|>a:"
    second, _ = chat.say("ho")
    expected = f"s:S<|endoftext|>u:hi<|endoftext|>a:{first.text}<|endoftext|>u:ho<|endoftext|>a:"
    assert second.prompt_tokens == model.encode(expected)
    ran = say("hi\nho\n", "--model", talkative, "--system", "S", "--max-tokens", LENGTH)
    assert ran.out == "".join(replies(open_chat(session, "S"), "hi", "ho"))


@pytest.mark.parametrize("kind", ["gguf", "talkative"])
def test_what_is_no_unicode_text_is_refused_as_in_prompts(kind: str, request: pytest.FixtureRequest) -> None:
    session = specjax.load(request.getfixturevalue(kind)).session(max_tokens=4)
    chat = open_chat(session)
    for refused in (lambda: chat.say("a\ud800b"), lambda: open_chat(session, "\udcff").say("a")):
        with pytest.raises(specjax.PromptError, match="the prompt is not Unicode text: surrogates not allowed at"):
            refused()


def test_a_turn_can_be_taken_back(say: Callable[..., Ran], gguf: Path, model: specjax.Model) -> None:
    ran = say("/undo\na\nb\n/undo\n/nonsense\nc\n// d\n/exit\ne\n", "--model", gguf, *OPTIONS)
    chat = open_chat(model.session(max_tokens=LENGTH, ignore_eos=True))
    first, *after = replies(chat, "a", "c", "// d")
    assert ran.out == first + replies(chat, "a", "b")[1] + "".join(after)
    assert "there is no turn to take back" in ran.err
    assert "the last turn is taken back" in ran.err
    assert "/nonsense is no command; there are /undo and /exit" in ran.err


def test_a_reply_that_is_cut_by_full_slots_is_announced(say: Callable[..., Ran], gguf: Path) -> None:
    cut = f"specjax: the reply is cut off: all {CONFIG.context_length} slots of the conversation are taken"
    command = ("--model", gguf, "--ignore-eos", "--quiet", "--max-tokens")
    assert say("a\n", *command, 500).err.startswith(cut)
    assert say("a\n", *command, LENGTH).err == ""


def test_a_turn_that_cannot_be_taken_ends_a_pipe(say: Callable[..., Ran], gguf: Path, talkative: Path) -> None:
    assert "has 151 tokens" in say("x" * 150, "--model", gguf).error
    assert "not that" in say("no\n", "--model", talkative).error
    assert "not UTF-8" in say(b"\xff\n", "--model", gguf).error
    assert "cannot drop the oldest tokens" in say("a\n", "--model", gguf, "--shift").error
    assert "slots is 1000; give 2 to 128" in say("a\n", "--model", gguf, "--slots", 1000).error


def test_what_was_said_of_a_broken_off_reply_stays(model: specjax.Model) -> None:
    first, chat = open_chat(model.session(max_tokens=LENGTH, ignore_eos=True)).say("a")
    chat = chat.after("b", model.encode("xyz"))
    third, chat = chat.say("c")
    between = "b\n" if first.text.endswith("\n") else "\nb\n"
    assert third.prompt_tokens == model.encode("a\n") + first.tokens + model.encode(between + "xyz\nc\n")
    assert third.tokens == fresh(model, third.prompt_tokens)
    assert chat.session.reuse is not None
    assert chat.session.reuse.reused == len(first.prompt_tokens) + LENGTH - 1
    assert chat.messages[3] == {"role": "assistant", "content": "xyz"}


@pytest.mark.skipif(os.name != "posix", reason="needs a signal for one process")
def test_ctrl_c_breaks_replies_off_and_the_end_of_the_input_leaves(tmp_path: Path) -> None:
    path = tmp_path / "long.gguf"
    config = replace(CONFIG, context_length=2**15)  # for a reply that does not come to its end meanwhile
    checkpoints.write_gguf(path, FAMILIES, config, agreeing_params(config), byte_tokenizer())
    # A process that was started in the background ignores SIGINT, and so would its children.
    program_text = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler);"
        "from specjax.cli.main import main; sys.exit(main())"
    )
    options = ["--model", str(path), "--draft", "0", "--max-tokens", "30000", "--ignore-eos"]
    command = [sys.executable, "-c", program_text, "chat", *options]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        assert program.stderr is not None
        for line in (b"class Stack:\n", b"def pop(self):\n"):
            program.stdin.write(line)
            program.stdin.flush()
            assert os.read(program.stdout.fileno(), 65536)
            program.send_signal(signal.SIGINT)
            while (said := program.stderr.readline()) != b"specjax: broken off\n":
                assert said.startswith(b"specjax: compiling the program"), "the reply came to its end"
            assert os.read(program.stdout.fileno(), 65536).endswith(b"\n")
        out, err = program.communicate(timeout=60)
    assert (program.returncode, out, err) == (0, b"", b"")
