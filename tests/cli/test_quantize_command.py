"""`specjax quantize` and `specjax imatrix`: what they say, and what they refuse."""

from __future__ import annotations

from pathlib import Path

from program import Cli

from checkpoints.gguf.file import GGUFFile


def test_a_model_is_quantized(cli: Cli, gguf: Path, tmp_path: Path) -> None:
    out = tmp_path / "q8.gguf"
    ran = cli("quantize", gguf, out, "--type", "q8_0")
    assert ran.status == 0
    assert f"wrote {out}: " in ran.err
    assert cli("inspect", out).status == 0


def test_a_model_is_split(cli: Cli, gguf: Path, tmp_path: Path) -> None:
    ran = cli("quantize", gguf, tmp_path / "q.gguf", "--type", "Q8_0", "--split-size", "30K")
    assert ran.status == 0
    parts = sorted(tmp_path.iterdir())
    assert len(parts) > 1
    assert f"wrote {parts[0]} to {parts[-1].name}: " in ran.err
    assert cli("verify", parts[1]).status == 0


def test_a_dry_run_shows_every_tensor_and_writes_nothing(cli: Cli, gguf: Path, tmp_path: Path) -> None:
    ran = cli("quantize", gguf, tmp_path / "q.gguf", "--type", "Q4_K_M", "--dry-run")
    assert ran.status == 0
    lines = ran.out.splitlines()
    assert lines[0].split() == ["TENSOR", "SHAPE", "IS", "BECOMES", "BYTES"]
    assert {line.split()[0] for line in lines[1:]} >= set(GGUFFile(gguf).tensors)
    assert any("do not divide into blocks of Q4_K" in line for line in lines)
    assert lines[-1].endswith("nothing is written")
    assert list(tmp_path.iterdir()) == []


def test_patterns_come_from_the_command_line_and_from_a_file(cli: Cli, gguf: Path, tmp_path: Path) -> None:
    patterns, out = tmp_path / "types.txt", tmp_path / "q.gguf"
    patterns.write_text("# the first that fits\nffn_up=Q5_1\n\nffn=Q5_0\n")
    arguments = ("--tensor-type", "ffn_gate=q4_1", "--tensor-type-file", patterns)
    assert cli("quantize", gguf, out, "--type", "Q8_0", *arguments).status == 0
    tensors = GGUFFile(out).tensors
    types = [tensors[f"blk.0.ffn_{name}.weight"].type for name in ("gate", "up", "down")]
    assert types == ["Q4_1", "Q5_1", "Q5_0"]


def test_importance_is_measured_and_used(cli: Cli, gguf: Path, tmp_path: Path) -> None:
    text, matrix = tmp_path / "text.txt", tmp_path / "imatrix.gguf"
    text.write_text("def f(x):\n    return x\n" * 8)
    ran = cli("imatrix", "--model", gguf, "--text", text, "--out", matrix, "--ctx", 32, "--chunks", 2)
    assert ran.status == 0
    assert "over 2 chunks of 32 tokens" in ran.err
    outs = [tmp_path / "with.gguf", tmp_path / "without.gguf"]
    assert cli("quantize", gguf, outs[0], "--type", "Q4_0", "--imatrix", matrix).status == 0
    assert cli("quantize", gguf, outs[1], "--type", "Q4_0").status == 0
    assert outs[0].read_bytes() != outs[1].read_bytes()
    assert GGUFFile(outs[0]).metadata["quantize.imatrix.file"] == "imatrix.gguf"


def test_what_cannot_be_done_is_refused(cli: Cli, gguf: Path, tmp_path: Path) -> None:
    out = tmp_path / "q.gguf"
    assert "IQ1_S is not written" in cli("quantize", gguf, out, "--type", "IQ1_S").error
    assert "REGEX=T" in cli("quantize", gguf, out, "--type", "Q4_0", "--tensor-type", "ffn").error
    patterns = tmp_path / "types.txt"
    patterns.write_text("ffn_up=Q5_1\nffn\n")
    assert "types.txt, line 2" in cli("quantize", gguf, out, "--type", "Q4_0", "--tensor-type-file", patterns).error
    assert "no importance matrix" in cli("quantize", gguf, out, "--type", "Q4_0", "--imatrix", gguf).error
    assert "--chunks is 0" in cli("imatrix", "--text", patterns, "--out", out, "--chunks", 0).error
    assert "needed at least" in cli("imatrix", "--model", gguf, "--text", patterns, "--out", out, "--ctx", 64).error
    assert not out.exists()
