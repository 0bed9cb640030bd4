"""Many prompts through one batch: rows are refilled as they finish, results are kept as they come."""

from specjax.evaluation.evaluate import Evaluation, PromptResult, sift
from specjax.evaluation.prompts import BadPrompt, PromptLine, parse_prompts, read_prompts, samples_of
from specjax.evaluation.results import ResultFile
from specjax.evaluation.shards import Shard, merge

__all__ = [
    "BadPrompt",
    "Evaluation",
    "PromptLine",
    "PromptResult",
    "ResultFile",
    "Shard",
    "merge",
    "parse_prompts",
    "read_prompts",
    "samples_of",
    "sift",
]
