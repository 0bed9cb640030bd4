"""`specjax score`: how probable a model finds texts that it is given."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specjax.cli.options import add_command, add_model_options, load_model
from specjax.cli.runtime import UsageError

if TYPE_CHECKING:
    from specjax.evaluation.questions import Answered

DESCRIPTION = """\
Log-probabilities of several continuations of a prompt: which one does the model find most probable?

  total      log-probability of the whole continuation, natural, given the prompt
  per token  the same divided by the number of its tokens; long continuations have lower totals
  per byte   the same divided by its bytes in UTF-8, which does not depend on the tokenizer
  share      its probability divided by the sum over all choices
  greedy     whether greedy decoding would say just this

The most probable choice is marked with *, and the right one, if it is known, with =.
"""

EPILOG = """\
The prompt and a choice are encoded apart, and then joined. Most tokenizers take a space and the word after it as one
token, so let a choice begin with the space and the prompt end without one.

Lines of a question file are JSON objects. "answer" is the number of the right choice, from 0; with it the accuracy is
reported, by totals and by bytes. Other keys go into the line of the result.
  {"prompt": "import numpy as", "choices": [" np", " numpy"]}
  {"id": "q2", "prompt": "def f(", "choices": ["x", "self"], "answer": 1}

Prompts are computed once for all of their choices, and what several prompts have in common at their start is computed
once for all of them.

examples:
  specjax score --prompt "import numpy as" --choice " np" --choice " numpy"
  specjax score --model model.gguf --questions questions.jsonl
  specjax score --questions questions.jsonl --json > scores.jsonl
"""


def add_parser(subparsers: Any) -> None:
    """Add the command to the program's parser."""
    parser = add_command(subparsers, "score", "log-probabilities of several continuations", DESCRIPTION, EPILOG, run)
    add_model_options(parser)
    given = parser.add_mutually_exclusive_group(required=True)
    given.add_argument("--prompt", metavar="TEXT", help="what the choices continue")
    given.add_argument("--questions", type=Path, metavar="F.jsonl", help="prompts with their choices, one a line")
    parser.add_argument(
        "--choice", action="append", default=[], metavar="TEXT", help="with --prompt: a continuation; can be repeated"
    )
    parser.add_argument(
        "--json", action="store_true", help="one JSON object a question on the standard output, with all tokens"
    )


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit status.

    Raises:
        UsageError: there are no choices, or they are given twice.
        PromptError: the question file is none, or a text does not fit the model.
    """
    if args.questions is None and not args.choice:
        raise UsageError("there is nothing to score; give at least one --choice")
    if not all(args.choice):
        raise UsageError("a --choice is empty; give texts, which may be a space")
    if args.questions is not None and args.choice:
        raise UsageError("--choice: of no use with --questions, whose lines have choices of their own")

    from specjax.evaluation.questions import Question, answer, read_questions

    if args.questions is None:
        questions = [Question(0, args.prompt, tuple(args.choice), None, "--prompt")]
    else:
        questions = read_questions(args.questions)
    model = load_model(args, need_tokenizer=True)
    answered = answer(model, questions)
    if args.json:
        for each in answered:
            print(json.dumps(each.as_line()))
    else:
        _show(answered)
    return 0


def _show(answered: Sequence[Answered]) -> None:
    from specjax.cli.text import console, print_rows
    from specjax.evaluation.questions import accuracy

    out = console()
    for number, each in enumerate(answered):
        if number:
            out.print()
        out.print(f"{each.question.id}: {_short(each.question.prompt, 100)}", markup=False)
        _print_choices(each)
    if figures := accuracy(answered):
        out.print()
        print_rows(
            out,
            [
                ("questions", f"{figures['questions']:g} with an answer"),
                ("accuracy", f"{figures['accuracy']:.3f} by total, {figures['accuracy_per_byte']:.3f} per byte"),
            ],
        )


def _print_choices(answered: Answered) -> None:
    from specjax.cli.text import console, print_table

    rows = [("", "total", "per token", "per byte", "share", "tokens", "greedy", "choice")]
    question = answered.question
    for index, score in enumerate(answered.scores):
        mark = ("*" if index == answered.best else "") + ("=" if index == question.answer else "")
        rows.append(
            (
                mark,
                f"{score.total:.4f}",
                f"{score.total / len(score.logprobs):.4f}",
                f"{answered.per_byte[index]:.4f}",
                f"{answered.shares[index]:.4f}",
                str(len(score.logprobs)),
                "yes" if score.greedy else "no",
                _short(question.choices[index], 60),
            )
        )
    print_table(console(), rows, [])


def _short(text: str, most: int) -> str:
    shown = json.dumps(text, ensure_ascii=False)
    return shown if len(shown) <= most else shown[: most - 4] + '..."'
