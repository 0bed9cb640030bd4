"""What holds for all tests."""

import os

# Most of the suite's time is LLVM optimising programs that then run once, on tiny arrays. The programs themselves, as
# XLA schedules and fuses them, stay the same. A level given from outside has precedence.
_FLAG = "--xla_backend_optimization_level"
if _FLAG not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_FLAG}=0".strip()
