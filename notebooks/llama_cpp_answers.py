"""What llama.cpp says to a few prompts: its tokens, and the log-probabilities of the best ones at each place.

`llama_cpp_answers.json` was made by this script; the notebook on conversion reads it where llama-cpp-python is not
installed. To make it again (llama-cpp-python is on PyPI, and takes some minutes to build):

    pip install llama-cpp-python==0.3.36
    specjax convert checkpoints/demo/specjax-demo-Q8_0.gguf folder --to hf --dtype float32
    specjax convert folder F32.gguf
    specjax quantize F32.gguf Q4_K_M.gguf --type Q4_K_M
    python notebooks/llama_cpp_answers.py F32=F32.gguf Q8_0=checkpoints/demo/specjax-demo-Q8_0.gguf \\
        Q4_K_M=Q4_K_M.gguf --out notebooks/llama_cpp_answers.json

llama.cpp computes on CPUs here, with float32 caches, one token at a time after the prompt, greedily.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).with_suffix(".json")
PROMPTS = (
    'class Stack:\n    """A last-in, first-out container."""\n\n    def __init__(self, items=None):\n',
    "import os\nimport sys\n\ndef main(argv=None):\n",
    "    def test_empty(self):\n        self.assertEqual(",
    "# This module reads and writes",
)
TOKENS = 64
BEST = 4
"""Of so many tokens the log-probabilities are kept at each place; the first of them is what llama.cpp says."""


def answers(path: Path) -> dict[str, Any]:
    """What llama.cpp makes of a GGUF file, and the file's SHA-256."""
    texts = [_continued(path, prompt) for prompt in PROMPTS]
    return {"sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "texts": texts}


def _continued(path: Path, prompt: str) -> dict[str, Any]:
    """A prompt's tokens, and ids [TOKENS, BEST] and log-probabilities of what may follow, the best first."""
    import llama_cpp

    f32 = llama_cpp.GGML_TYPE_F32
    llama = llama_cpp.Llama(str(path), n_ctx=512, logits_all=True, type_k=f32, type_v=f32, verbose=False)
    fed = llama.tokenize(prompt.encode(), add_bos=False, special=True)
    answer: dict[str, Any] = {"prompt": prompt, "prompt_tokens": fed, "ids": [], "logprobs": []}
    for _ in range(TOKENS):
        llama.eval(fed)
        logits = llama.scores[llama.n_tokens - 1].astype(np.float64)
        best = np.argsort(-logits, kind="stable")[:BEST]
        answer["ids"].append(best.tolist())
        answer["logprobs"].append((logits[best] - np.logaddexp.reduce(logits)).round(6).tolist())
        fed = [int(best[0])]
    llama.close()
    return answer


def main() -> None:
    """Ask llama.cpp about each file, and write its answers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="TYPE=FILE", help="GGUF files by what they are called")
    parser.add_argument("--out", type=Path, default=HERE, help="JSON file (default: %(default)s)")
    args = parser.parse_args()
    import llama_cpp

    found = {name: answers(Path(file)) for name, _, file in (each.partition("=") for each in args.files)}
    system = llama_cpp.llama_print_system_info().decode().strip()
    made_by = f"llama-cpp-python {llama_cpp.__version__}, {platform.system()} {platform.machine()}; {system}"
    args.out.write_text(json.dumps({"made by": made_by, "files": found}) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
