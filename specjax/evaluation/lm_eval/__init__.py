"""specjax as a model of EleutherAI's lm-evaluation-harness, whose package is `lm_eval`: the extra `eval`.

The harness looks for models in its own registry alone, and reads no entry points. So `python -m
specjax.evaluation.lm_eval` puts specjax into the registry and then runs the harness's own command line. In Python,
`register()` does the first half.
"""

from specjax.evaluation.lm_eval.answers import Answers, Asked
from specjax.evaluation.lm_eval.plugin import NAME, harness_model, register

__all__ = ["NAME", "Answers", "Asked", "harness_model", "register"]
