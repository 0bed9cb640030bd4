"""What the README shows of the kernels runs as it stands."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"


def test_the_example_of_the_kernels_runs(capsys: pytest.CaptureFixture[str]) -> None:
    section = README.read_text(encoding="utf-8").split("\n## Kernels\n")[1].split("\n## ")[0]
    (example,) = re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)
    names: dict[str, object] = {}
    exec(example, names)
    assert names["state"].shape == (2, 4, 64, 64)
    assert names["window"].shape == (2, 3, 128)
    assert "gated_delta.verify on" in capsys.readouterr().out
