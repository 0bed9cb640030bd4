"""`specjax convert` and `specjax verify`: what they print, what they leave, how they end."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from program import Cli

import checkpoints
from checkpoints.convert import Conversion
from specjax.models.registry import FAMILIES


def test_a_conversion_is_reported_and_verified(cli: Cli, gguf: Path, tmp_path: Path) -> None:
    ran = cli("convert", gguf, tmp_path / "m.orbax", "--verify")
    assert ran.status == 0
    assert f"wrote {tmp_path / 'm.orbax'}: " in ran.err
    assert "parameters are equal" in ran.err
    assert "Traceback" not in ran.err
    assert cli("convert", tmp_path / "m.orbax", tmp_path / "m.gguf").status == 0
    assert (tmp_path / "m.gguf").read_bytes() == gguf.read_bytes()
    assert cli("convert", gguf, tmp_path / "hf", "--to", "hf", "--dtype", "bfloat16", "--verify").status == 0
    assert checkpoints.describe(tmp_path / "hf", FAMILIES).problems is None
    ran = cli("verify", gguf, tmp_path / "hf", tmp_path / "m.orbax")
    assert ran.status == 0
    assert ran.out.count("nothing is wrong") == 3


def test_a_dry_run_shows_every_tensor_and_writes_nothing(cli: Cli, gguf: Path, tmp_path: Path) -> None:
    ran = cli("convert", gguf, tmp_path / "m.orbax", "--dry-run")
    assert ran.status == 0
    lines = ran.out.splitlines()
    assert sum(line.startswith("blk.") for line in lines) > 20
    assert any(line.split()[:4:2] == ["token_embd.weight", "target.embed.weight"] for line in lines)
    assert lines[-1].endswith("nothing is written")
    assert not list(tmp_path.iterdir())


def test_a_tokenizer_that_cannot_be_converted_is_said_to_be_missing(cli: Cli, gguf: Path, tmp_path: Path) -> None:
    path, raw = tmp_path / "odd.gguf", gguf.read_bytes()
    head, key, rest = raw.partition(b"tokenizer.ggml.pre")
    path.write_bytes(head + key + rest.replace(b"qwen35", b"falcon", 1))
    for options in ((), ("--dry-run",)):
        ran = cli("convert", path, tmp_path / "hf", "--to", "hf", *options)
        assert ran.status == 0
        said = f"no tokenizer is written: {path}: pre-tokenizer 'falcon' is not known; known are "
        assert said in ran.out + ran.err
        assert "Give --tokenizer with" in ran.out + ran.err
        shutil.rmtree(tmp_path / "hf", ignore_errors=True)
    ran = cli("convert", path, tmp_path / "hf", "--to", "hf", "--tokenizer", gguf)
    assert "no tokenizer" not in ran.err
    assert (tmp_path / "hf" / "tokenizer.json").is_file()
    assert "no tokenizer" not in cli("convert", path, tmp_path / "copy.gguf").err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("out",), "of which format"),
        (("out.gguf", "--split-size", "big"), "'big' is not a size"),
        (("out.gguf", "--to", "onnx"), "invalid choice: 'onnx'"),
        (("out.gguf", "--tokenizer", "absent"), "absent: no such file"),
        (("there.gguf",), "exists; give --force"),
    ],
)
def test_bad_orders_are_refused(
    options: tuple[str, ...], message: str, cli: Cli, gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("there.gguf").touch()
    assert message in cli("convert", gguf, *options).error
    assert [path.name for path in tmp_path.iterdir()] == ["there.gguf"]


def test_a_result_that_differs_is_removed(
    cli: Cli, gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Conversion.run

    def damaged(self: Conversion, *arguments: object) -> list[Path]:
        (path,) = write(self, *arguments)  # type: ignore[arg-type]
        raw = bytearray(path.read_bytes())
        raw[-50] ^= 0x40
        path.write_bytes(raw)
        return [path]

    monkeypatch.setattr(Conversion, "run", damaged)
    ran = cli("convert", gguf, tmp_path / "m.gguf", "--verify")
    assert ran.status == 1
    assert "differs from the source and is removed" in ran.err
    assert not list(tmp_path.iterdir())


def test_verify_ends_with_one_if_anything_is_wrong(cli: Cli, gguf: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(gguf.read_bytes()[:-5000])
    ran = cli("verify", gguf, bad, "--json")
    assert ran.status == 1
    first, second = map(json.loads, ran.out.splitlines())
    assert first["ok"]
    assert not second["ok"]
    assert "truncated" in second["findings"][0]["what"]
    report = cli("verify", bad).out
    assert "fix: " in report
    assert "1 thing is wrong" in report
