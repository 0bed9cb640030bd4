"""Whether the acceptance rules are exact, as they are compiled here."""

from __future__ import annotations

import numpy as np

from specjax.analysis.lossless.enumeration import CORRECT, Language, speculation_odds, stopping, target_odds
from specjax.analysis.lossless.report import Check
from specjax.decoding.settings import DraftConfig, SamplerConfig

FILTERED = SamplerConfig(0.8, top_k=2, top_p=0.9)
TOLERANCE = 1e-5


def check_rules(sampler: SamplerConfig, draft: DraftConfig) -> Check:
    """Enumerate all texts of a tiny language under the rules, with these settings."""
    n_drafts = min(draft.n_max, 3)
    config = DraftConfig(n_drafts, min(draft.n_min, n_drafts), draft.p_min)
    language, worst, faults = Language.alike(3, 4), 0.0, []
    for rule, correct in CORRECT.items():
        for drawn in (True, False):
            for each in (sampler, FILTERED):
                odds = speculation_odds(correct, language, n_drafts, each, stopping(config), drawn=drawn)
                off = float(np.abs(odds.texts - target_odds(language, each)).max())
                worst = max(worst, off)
                if not off < TOLERANCE:
                    kind = "drawn" if drawn else "certain"
                    faults.append(f"{rule}, {kind} drafts, {each}: a text's probability is off by {off:.2g}")
    return Check(
        "rules",
        "is every text exactly as probable as the target makes it, by enumeration?",
        f"{len(language.texts())} texts of 4 tokens, rounds of {n_drafts} drafts; probabilities are off by at most"
        f" {worst:.1e}",
        tuple(faults),
        advice="the installation: JAX computes something else here than where the rules were tested",
    )
