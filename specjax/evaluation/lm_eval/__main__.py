"""The command line of lm-evaluation-harness, with `--model specjax`."""

from __future__ import annotations

from checkpoints import CheckpointError
from specjax.errors import SpecjaxError
from specjax.evaluation.lm_eval.plugin import register


def main() -> None:
    """Run it on the arguments of this process."""
    try:
        register()
        from lm_eval.__main__ import cli_evaluate

        cli_evaluate()
    except (SpecjaxError, CheckpointError) as error:
        raise SystemExit(f"specjax: error: {error}") from error


if __name__ == "__main__":
    main()
