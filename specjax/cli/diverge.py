"""`specjax diverge`: where two texts that should be equal part, and why."""

from __future__ import annotations

import argparse
import json
from typing import Any

from specjax.cli.options import (
    add_command,
    add_decoding_options,
    add_model_options,
    add_prompt_options,
    generate_options,
    load_model,
    read_prompt,
)

DESCRIPTION = """\
Compare two continuations of one prompt that should be equal. If they are not: which token is the first that differs,
what the model says of both, how much of that is rounding, and what is behind it.

A and B are each one of these:

  settings    NAME=VALUE,... of a run that is made now: draft=3 or draft=3,kv_type_k=q8_0 or temperature=0.8,seed=1.
              The options below hold for both runs, and A and B change some of them
  a file      JSON that specjax generate --json wrote; the run is made again, with the settings that the file says
  a file      JSON with the tokens of another program: [1, 2, 3], or {"tokens": [1, 2, 3], "prompt_tokens": [7, 8]}

Without A, it is a run with the options below. Without B, it is plain decoding.

The verdict is one of these:

  equal             the tokens are the same, and so is what the runs carry
  near-tie          the two logits tie within rounding: either token is right
  sampling          both tokens can come from these logits; they were drawn with other settings or random numbers
  settings          each run has what its own cache types make of the text, or what its own grammar, bias and penalties
                    leave
  state gone wrong  a run of this model says or carries what its text does not give
  another model     tokens from a file that this model does not say: other weights, tokenizer, prompt, or a fault there

What judges is a pass over the whole text before the difference: one call, an empty state, the plainest kernels.
The state of runs that are made here is compared with that of feeding their tokens one by one: after the prompt and
after each round, every cache, ring and recurrent state, and what the drafter carries. A wrong state of the drafter
changes no token and only costs speed, so look at runs whose texts are equal as well.
"""

EPILOG = """\
examples:
  specjax diverge draft=3 draft=0 --model model.gguf --prompt "def f("      speculative against plain decoding
  specjax diverge --prompt "def f("                                         the same, with the usual number of drafts
  specjax diverge draft=0 draft=0,kv_type_k=q8_0 --prompt "def f("          what a cache type changes
  specjax generate --prompt "def f(" --json > ours.json
  specjax diverge ours.json llama.json --prompt "def f("                    against another program's tokens
  specjax diverge draft=3 --prompt "def f(" --drafter ngram --json          one JSON object on the standard output

exit status: 0 equal, or different for a harmless reason; 1 a state gone wrong, or another model
"""


def add_parser(subparsers: Any) -> None:
    """Add the command to the program's parser."""
    parser = add_command(
        subparsers, "diverge", "find out why two texts that should be equal differ", DESCRIPTION, EPILOG, run
    )
    parser.add_argument("a", nargs="?", metavar="A", help="settings, or a JSON file (default: the options below)")
    parser.add_argument("b", nargs="?", metavar="B", help="settings, or a JSON file (default: draft=0)")
    add_model_options(parser)
    add_prompt_options(parser)
    parser.add_argument(
        "--no-states", action="store_true", help="compare tokens only, not what the runs carry, which takes longer"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on the standard output, and nothing else")
    add_decoding_options(parser)


def run(args: argparse.Namespace) -> int:
    """Returns the exit status: 1 if something is wrong."""
    options, prompt = generate_options(args), read_prompt(args)

    from specjax.analysis.diverge import diverge
    from specjax.cli.text import console

    model = load_model(args, need_tokenizer=isinstance(prompt, str))
    report = diverge(model, prompt, args.a, args.b, options, states=not args.no_states)
    if args.json:
        print(json.dumps(report.as_document()))
    else:
        console().print(str(report), markup=False, highlight=False, soft_wrap=True)
    return int(not report.ok)
