"""Runs the program as `python -m specjax`."""

import sys

from specjax.cli.main import main

sys.exit(main())
