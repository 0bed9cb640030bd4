"""The tables of a day with a device, in Markdown: of the device, of kernels, of models, and of what was done."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from day_slices import KERNELS


def page(outcomes: Mapping[str, Mapping[str, Any]], found: Mapping[str, Any]) -> str:
    """All tables.

    Args:
        outcomes: of slices by their names.
        found: figures by the names of slices; "tuned" is the file of block sizes and choices.
    """
    lines = [*_device(found.get("device", {})), ""]
    lines += ["| operation | sizes | implementation | us | MB | of the copy rate | x XLA | error |", "| - " * 8 + "|"]
    for name in KERNELS:
        figures = found.get(f"kernels-{name}", {})
        lines += [_kernel(each) for each in figures.get("results", ())]
        if "bytes_per_second" in figures:
            rate = figures["bytes_per_second"] / 1e9
            lines.append(f"| copy rate of kernels-{name} | | | | | {rate:.0f} GB/s | | |")
    lines += ["", "| model | K | tokens/s | tokens per round | ms per round | speed-up |", "| - " * 6 + "|"]
    for name, figures in found.items():
        if name.startswith("model-"):
            lines += _steps(name.removeprefix("model-"), figures)
        if name.startswith("llama.cpp-"):
            tests = (f"{each['n_prompt']}+{each['n_gen']}: {each['avg_ts']:.1f}" for each in figures)
            lines.append(f"| {name} | | {', '.join(tests)} | | | |")
    for name, text in found.items():
        if name.startswith("roofline-"):
            lines += ["", f"{name}:", "", "```text", text.rstrip(), "```"]
    lines += ["", "| left out | implementation | why |", "| - " * 3 + "|"]
    for choice in found.get("tuned", {}).get("choices", ()):
        lines += [f"| {choice['operation']} | {impl} | {why} |" for impl, why in choice["left_out"].items()]
    lines += ["", "| slice | | seconds |", "| - " * 3 + "|"]
    lines += [f"| {name} | {outcome['status']} | {outcome['seconds']} |" for name, outcome in outcomes.items()]
    return "\n".join(lines)


def _device(figures: Mapping[str, Any]) -> Iterator[str]:
    yield f"# Measured on {figures.get('machine', 'an unknown device')}"
    about = {**figures.get("about", {}), "memory of a device in bytes": figures.get("bytes")}
    about |= {name: figures.get(name) for name in ("devices", "commit", "date")}
    yield ""
    yield from (f"* {name}: {value}" for name, value in about.items() if value)


def _kernel(each: Mapping[str, Any]) -> str:
    about = f"| {each['operation']} | {each['sizes']} | {each['impl']} |"
    if "refused" in each:
        return f"{about} {each['refused']} | | | | |"
    ratios = (each.get("share_of_limit"), each.get("times_as_fast_as_xla"))
    shown = " | ".join("" if value is None else f"{value:.2f}" for value in ratios)
    error = f"{each['error']:.0e}" if "error" in each else ""
    return f"{about} {each['seconds'] * 1e6:.1f} | {each['num_bytes'] / 1e6:.2f} | {shown} | {error} |"


def _steps(name: str, figures: Mapping[str, Any]) -> Iterator[str]:
    for speed in figures["speeds"]:
        numbers = (speed["tokens_per_second"], speed["tokens_per_round"], speed["round"] * 1e3, speed["speedup"])
        yield f"| {name} | {speed['draft']} | {' | '.join(f'{number:.2f}' for number in numbers)} |"
