"""specjax as a model of EleutherAI's lm-evaluation-harness, whose package is `lm_eval`: the extra `eval`.

The harness finds specjax by an entry point of the group `lm_eval.models`, in releases after 0.4.13. Earlier ones look
into their own registry alone. For them `python -m specjax.evaluation.lm_eval` puts specjax into the registry and then
runs the harness's own command line. In Python, `register()` does the first half.
"""

from specjax.evaluation.lm_eval.answers import Answers, Asked
from specjax.evaluation.lm_eval.plugin import NAME, harness_model, register

__all__ = ["NAME", "Answers", "Asked", "harness_model", "register"]
