"""What each process of a job does in tests: MODEL MESH FOLDER, then the options that say how to meet the others.

Process 0 prints what came out as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import specjax
from specjax.mesh import hosts

PROMPTS = [[7, 8, 9, 10, 11], [20, 21, 22], [5] * 9]
LATER = [30, 31, 32]
LENGTH: dict[str, Any] = {"max_tokens": 12, "ignore_eos": True}


def everything(model: specjax.Model, folder: Path) -> dict[str, Any]:
    """Batches, drawn texts, a number of drafts that finds itself, scores, logits, and a session that is saved."""
    drawn = {"temperature": 0.8, "accept": "coupled", "seed": 3}
    reply, session = model.session(draft=2, **LENGTH).generate(PROMPTS[0])
    session.save(folder / "session")
    loaded = model.load_session(folder / "session")
    return {
        "greedy": [each.tokens for each in model.generate_batch(PROMPTS, draft=2, **LENGTH)],
        "drawn": [each.tokens for each in model.generate_batch(PROMPTS, draft=2, **LENGTH, **drawn)],
        "auto": model.generate(PROMPTS[0], draft="auto", max_tokens=60, ignore_eos=True).tokens,
        "score": model.score(PROMPTS[0], PROMPTS[1]),
        "best": int(model.next_logits(PROMPTS[0]).argmax()),
        "reply": reply.tokens,
        "later": loaded.generate([*loaded.conversation, *LATER])[0].tokens,
        "digest": model.digest,
    }


if __name__ == "__main__":
    path, mesh, folder, _, coordinator, _, processes, _, process = sys.argv[1:]
    hosts.join(coordinator, int(processes), int(process))
    found = everything(specjax.load(path, mesh=mesh), Path(folder))
    if hosts.is_first():
        print(json.dumps(found))
