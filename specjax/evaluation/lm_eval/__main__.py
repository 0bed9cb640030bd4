"""The command line of lm-evaluation-harness, with `--model specjax`."""

from __future__ import annotations

from specjax.errors import SpecjaxError
from specjax.evaluation.lm_eval.plugin import register


def main() -> None:
    """Run it on the arguments of this process."""
    try:
        register()
    except SpecjaxError as error:
        raise SystemExit(str(error)) from error
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()


if __name__ == "__main__":
    main()
