"""What the bundled model says greedily, with drafts and without, as JSON: `python tests/neon/tokens.py`."""

from __future__ import annotations

import json
from pathlib import Path

import specjax

PROMPTS = Path(__file__).parents[2] / "benchmarks" / "prompts.jsonl"
DRAFTS = (0, 3)


def said() -> dict[str, list[list[int]]]:
    """The tokens of each prompt, by the number of drafts."""
    model = specjax.load()
    prompts = [json.loads(line)["prompt"] for line in PROMPTS.read_text().splitlines()[:3]]
    return {
        f"{draft} drafts": [
            list(result.tokens) for result in model.generate_batch(prompts, max_tokens=64, draft=draft, ignore_eos=True)
        ]
        for draft in DRAFTS
    }


if __name__ == "__main__":
    print(json.dumps(said()))
