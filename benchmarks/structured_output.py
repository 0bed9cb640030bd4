"""What structured output costs, and what the mask on the drafter brings.

Four tables: how large grammars are and how long they take to build for a vocabulary of a large model; tokens per round
with the mask on target and drafter, and with the mask on the target alone; how much longer rounds take, where any text
is allowed; and how long the mask of a round takes where the vocabulary is large.

    python benchmarks/structured_output.py
    python benchmarks/structured_output.py --model model.gguf --parts acceptance
    python benchmarks/random_model.py q8.gguf --type Q8_0 --layers 24
    python benchmarks/structured_output.py --model q8.gguf --parts rounds --draft 3
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sysconfig
import time
from itertools import product
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from machine import description
from rich.console import Console
from rich.table import Table
from trace_cost import Decoding

import specjax
from specjax.decoding.grammar import Constraint, Grammar, GrammarRows, GrammarTables
from specjax.decoding.new_state import with_constraint
from specjax.grammar.automaton import byte_automaton
from specjax.grammar.schema import schema_regex
from specjax.grammar.tokens import over_tokens

SLOTS = 1024
"""Room of the states whose rounds are timed."""

PARTS = ("tables", "acceptance", "rounds", "masks")
NAMES = [
    *("name", "age", "score", "active", "color", "tags", "summary", "title", "author", "date", "price", "quantity"),
    *("status", "category", "rating", "comment", "address", "city", "country", "email", "phone", "width", "height"),
    *("depth", "weight", "material", "supplier", "warehouse", "shelf", "batch", "expiry", "origin", "brand", "model"),
    *("year", "mileage", "engine", "seats", "doors", "owner"),
]
KINDS: tuple[Any, ...] = (
    {"type": "string"},
    {"type": "integer"},
    {"type": "number"},
    {"type": "boolean"},
    {"enum": ["red", "green", "blue"]},
    {"type": "array", "items": {"type": "string"}},
    {"type": "string", "maxLength": 20},
)
PROMPTS = (
    'record = json.loads("""',
    "import json\n\n# An example of a record\nEXAMPLE = ",
    "def test_record():\n    assert record() == ",
    "The data of the first user are:\n",
)


def schema(fields: int, *, required: bool = True) -> dict[str, Any]:
    """An object with so many fields of all kinds."""
    properties = {name: KINDS[index % len(KINDS)] for index, name in enumerate(NAMES[:fields])}
    return {"type": "object", "properties": properties, "required": list(properties) if required else []}


def short_schema(fields: int) -> dict[str, Any]:
    """An object whose texts end soon, so that random strings do not fill the budget."""
    kinds: tuple[Any, ...] = ({"type": "string", "maxLength": 8}, *KINDS[3:5], {"type": "null"})
    properties = {name: kinds[index % len(kinds)] for index, name in enumerate(NAMES[:fields])}
    return {"type": "object", "properties": properties, "required": list(properties)}


def vocabulary(size: int) -> list[bytes]:
    """Words of Python's standard library and parts of them, as BPE would have them, and random bytes for the rest."""
    rng, single = random.Random(0), [bytes([byte]) for byte in range(256)]
    pieces: set[bytes] = set()
    words: set[bytes] = set()
    for path in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py"))[:2000]:
        words.update(re.findall(rb" ?[A-Za-z]+|\d{1,3}| ?[^\sA-Za-z0-9]+|\s+", path.read_bytes()))
    for word in sorted(word for word in words if len(word) <= 64):
        cut = rng.randint(1, len(word))
        pieces |= {word, word[:cut], word[cut:]}
    while len(pieces) < size + len(single):
        pieces.add(rng.randbytes(rng.randint(2, 12)))
    return [*single, *rng.sample(sorted(piece for piece in pieces if len(piece) > 1), size - len(single))]


def compiled(wanted: dict[str, Any], pieces: list[bytes]) -> Grammar:
    """The grammar of a schema, with one more token that ends texts."""
    return over_tokens(byte_automaton(schema_regex(wanted)), [*pieces, b""], [len(pieces)], len(pieces) + 1)


def tables(args: argparse.Namespace) -> Table:
    """How large grammars are, and how long it takes to build them."""
    pieces = vocabulary(args.vocab)
    table = Table("schema", "states", "classes", "table MB", "classes MB", "seconds", title=f"V = {args.vocab}")
    cases = {f"{count} fields": schema(count) for count in (3, 10, 20, 40)}
    cases |= {f"{count} optional fields": schema(count, required=False) for count in (10, 40)}
    for name, wanted in {**cases, "any JSON": {}}.items():
        begin = time.perf_counter()
        grammar = compiled(wanted, pieces)
        seconds = time.perf_counter() - begin
        sizes = [f"{array.nbytes / 1e6:.2f}" for array in (grammar.next, grammar.classes)]
        table.add_row(name, *map(str, grammar.next.shape), *sizes, f"{seconds:.1f}")
    return table


def acceptance(args: argparse.Namespace) -> Table:
    """Tokens per round with the mask on the drafter and without."""
    model = specjax.load(args.model, drafter=args.drafter)
    table = Table("temperature", "K", "mask", "tokens per round", "accepted", title=repr(model))
    wants = [json.dumps(short_schema(count)) for count in (3, 6, 9, 12)]
    for temperature, draft in product(args.temperature, args.draft):
        for name, options in {
            "none": {"draft": specjax.DraftConfig(draft)},
            "target": {"draft": specjax.DraftConfig(draft, masked=False), "json_schema": wants},
            "target and drafter": {"draft": specjax.DraftConfig(draft), "json_schema": wants},
        }.items():
            stats = [
                result.stats
                for seed in range(args.seeds if temperature else 1)
                for result in model.generate_batch(
                    PROMPTS, temperature=temperature, max_tokens=args.max_tokens, seed=seed, **options
                )
            ]
            tokens = sum(each.tokens for each in stats) / sum(each.rounds for each in stats)
            accepted = sum(each.accepted for each in stats) / sum(each.drafted for each in stats)
            table.add_row(f"{temperature:g}", str(draft), name, f"{tokens:.2f}", f"{accepted:.0%}")
    return table


def any_text(size: int, classes: int = 1024) -> Grammar:
    """A grammar of one state that allows everything, with tokens in as many classes as large schemas have."""
    own = np.random.default_rng(0).integers(0, min(classes, size), size, dtype=np.int32)
    return Grammar(np.zeros((1, own.max() + 1), np.int32), own)


def rounds(args: argparse.Namespace) -> Table:
    """The time of a round without a grammar, and with one that allows any text, in turns."""
    model = specjax.load(args.model, drafter=args.drafter, need_tokenizer=False)
    table = Table("rows B", "K", "temperature", "ms, no grammar", "ms, any text", "ratio", title=repr(model))
    tables = GrammarTables.of([any_text(model.target.vocab_size)], model.target.vocab_size)
    for batch, draft, temperature in product(args.batch, args.draft, args.temperature):
        options = specjax.GenerateOptions(draft=draft, temperature=temperature, max_tokens=SLOTS, ignore_eos=True)
        runs = [Decoding.started(model, options, batch, SLOTS) for _ in range(2)]
        held = GrammarRows(jnp.ones(batch, jnp.int32), jnp.zeros(batch, jnp.int32), jnp.ones(batch, bool))
        # Rounds consume their state, and the tables with it.
        constraint = Constraint(jax.tree.map(jnp.copy, tables), held)
        runs[1].state = with_constraint(runs[1].state, model.params, constraint)
        runs[1].seconds_of_a_round()  # compiles
        times: list[list[float]] = [[], []]
        for turn in range(args.turns):
            for which in (0, 1) if turn % 2 else (1, 0):
                times[which].append(runs[which].seconds_of_a_round())
        ratio = np.median([masked / own for own, masked in zip(*times, strict=True)])
        middle = [f"{1e3 * np.median(each):.2f}" for each in times]
        table.add_row(str(batch), str(draft), f"{temperature:g}", *middle, f"{ratio:.3f}")
    return table


def masks(args: argparse.Namespace) -> Table:
    """How long it takes to mask the logits of a round, in all rows."""
    pieces = vocabulary(args.vocab)
    grammar = compiled(schema(20), pieces)
    table = Table("rows B", "places R", "ms", title=f"the mask of a round, V = {args.vocab + 1}, 20 fields")
    for batch, places in product((1, 8), (1, 4)):
        rows = GrammarRows(jnp.ones(batch, jnp.int32), jnp.zeros(batch, jnp.int32), jnp.ones(batch, bool))
        constraint = Constraint(GrammarTables.of([grammar], args.vocab + 1), rows)
        logits = jnp.zeros((batch, places, args.vocab + 1))
        drafts = jnp.zeros((batch, places - 1), jnp.int32)
        mask = jax.jit(lambda held, drafts, logits: held.window(drafts).masked(logits))
        times = []
        for _ in range(args.repeats + 1):
            begin = time.perf_counter()
            jax.block_until_ready(mask(constraint, drafts, logits))
            times.append(time.perf_counter() - begin)
        table.add_row(str(batch), str(places), f"{np.median(times[1:]) * 1e3:.2f}")
    return table


def main() -> None:
    """Print the tables that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="which tables")
    parser.add_argument("--model", help="a model file (default: the bundled model)")
    parser.add_argument("--drafter", help="what drafts (default: the model's own head)")
    parser.add_argument("--vocab", type=int, default=248_000, help="tokens of the large vocabulary")
    parser.add_argument("--draft", type=int, nargs="+", default=[1, 3, 5], help="numbers of drafts")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 4], help="rows whose rounds are timed")
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.0, 0.8], help="temperatures")
    parser.add_argument("--max-tokens", type=int, default=160, help="tokens after each prompt")
    parser.add_argument("--seeds", type=int, default=4, help="how often each prompt is continued")
    parser.add_argument("--turns", type=int, default=12, help="how often rounds are timed")
    parser.add_argument("--repeats", type=int, default=20, help="how often a mask is timed")
    args = parser.parse_args()
    console = Console()
    console.print(description(), markup=False)
    for part in args.parts:
        console.print({"tables": tables, "acceptance": acceptance, "rounds": rounds, "masks": masks}[part](args))


if __name__ == "__main__":
    main()
