"""Cut `prompts.jsonl` from held-out modules of the standard library: text that the bundled model was not trained on.

    python benchmarks/make_prompts.py

The text belongs to the Python Software Foundation (PSF License Agreement, see checkpoints/demo/LICENSE-PSF).
"""

from __future__ import annotations

import json
from pathlib import Path

from specjax.training.corpus import HELD_OUT, standard_library

LINES = 14
"""Lines of a prompt; what follows them is what the model has to guess."""


def main() -> None:
    """One prompt per named held-out module, from a third of the way into the file."""
    lines_out = []
    for document in standard_library().held_out:
        if document.path not in HELD_OUT:
            continue
        lines = document.text.splitlines(keepends=True)
        start = len(lines) // 3
        prompt = "".join(lines[start : start + LINES]).rstrip()
        lines_out.append(json.dumps({"id": f"{document.path}:{start + 1}", "prompt": prompt}))
    path = Path(__file__).with_name("prompts.jsonl")
    path.write_text("\n".join(lines_out) + "\n")
    print(f"{len(lines_out)} prompts in {path}")


if __name__ == "__main__":
    main()
