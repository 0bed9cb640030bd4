"""Which drafts are accepted, and which token follows them.

A round verifies K drafts with K + 1 rows of target logits: row i predicts the token at `position + i`, draft i is a
guess of that token. The first n drafts are accepted and row n gives the next token, so a round emits n + 1 tokens.

| rule | draft | accepted | guarantee |
| --- | --- | --- | --- |
| coupled | drawn with the position's TOKEN noise | while it is what the target draws with the same noise | the tokens of plain sampling with the same seed, whatever the drafter |
| rejection | drawn with DRAFT noise, or any deterministic guess | while u < p(draft) / q(draft) | the target's distribution |
| block | as for rejection | the longest start of the drafts that passes a test of its own, see `block` | the target's distribution |
| `Synthetic` | as for coupled | while u < a given probability | none: it is for measuring speed |

With the rule "each", every row has a rule of its own, which is data. Each rule is a file. Rejection: Leviathan et al. 2023 (arXiv:2211.17192), Chen et al. 2023 (arXiv:2302.01318). Block:
Sun et al. 2024 (arXiv:2403.10444). Coupled: Daliri et al. 2025 (arXiv:2408.07978), with Gumbel noise. A greedy row draws
nothing, and all rules accept its drafts while they are the target's argmax, whatever the rows beside it do. The rule
"greedy" is for batches in which no row draws: its program has no code for drawing, and is compiled sooner. All rules
share one state, so that a batch may change its rule between two rounds.
"""  # noqa: E501

from specjax.decoding.acceptance.choosing import choose_token, propose_token
from specjax.decoding.acceptance.dispatch import accept
from specjax.decoding.acceptance.rule import RULES, DrawingRule, Rule, draws_drafts
from specjax.decoding.acceptance.synthetic import Synthetic
from specjax.decoding.acceptance.verdict import PADDING, Verdict

__all__ = [
    "PADDING",
    "RULES",
    "DrawingRule",
    "Rule",
    "Synthetic",
    "Verdict",
    "accept",
    "choose_token",
    "draws_drafts",
    "propose_token",
]
