"""Kernels choose themselves: before an engine builds its programs, what they call is measured on this device, once.

The calls are found by tracing the programs. What was measured before, here or in another process, is not measured
again. On CPUs nothing is measured unless it is asked for: the order of the table was measured there.
"""

from __future__ import annotations

import time
from dataclasses import replace

import jax

from pallas_kernels import memory, override
from pallas_kernels.choices import key_of
from pallas_kernels.files import cache_folder
from pallas_kernels.measuring import measure, worth_measuring
from pallas_kernels.recording import Call, recording
from specjax.decoding.decoder import Decoder
from specjax.mesh.shards import EXACT, devices_of
from specjax.models.protocol import Params
from specjax.runtime.notices import bar, listener
from specjax.runtime.pieces import longest_piece, width_of
from specjax.runtime.programs import Programs


def measure_kernels(decoder: Decoder, params: Params, seats: int, slots: int, measured: set[str]) -> None:
    """Measure what the programs of an engine call, if it is worth it: see `pallas_kernels.using` for who decides.

    Args:
        decoder, params, seats, slots: of the engine.
        measured: keys of choices that engines of the model have measured or tried to; new ones are added.

    Warns:
        RuntimeWarning: a kernel is left out, because it did not compile, crashed or is wrong.
    """
    forced = override.current()
    if forced.only_xla or not _alone(params):
        return
    if not forced.measure and (jax.default_backend() == "cpu" or cache_folder() is None):
        return
    calls = [call for call in calls_of(decoder, params, seats, slots) if not forced.forces(call[0])]
    say = listener.get()

    def open_calls() -> list[Call]:
        return [call for call in worth_measuring(calls, anew=forced.measure) if key_of(*call) not in measured]

    if not open_calls():
        return
    with memory.turn(lambda: say("another program measures kernels on such a device; this one waits for it")):
        work = open_calls()
        measured |= {key_of(*call) for call in work}
        if work:
            _measure(work)


def _measure(work: list[Call]) -> None:
    """Measure calls, and say so."""
    say, begin = listener.get(), time.perf_counter()
    say(f"measuring kernels for {len(work)} kinds of calls; this is done once for a model on a device")
    with bar("measuring kernels") as progress:
        report = measure(work, progress=progress)
    where = f"kept in {memory.file()}" if memory.file() else "kept for this process alone"
    seconds = time.perf_counter() - begin
    say(f"measured kernels for {len(report.choices)} kinds of calls in {seconds:.0f} s; {where}")
    if report.unfinished:
        rest = len(report.unfinished)
        say(f"{rest} kinds of calls were not measured, and go by the table; the first is {report.unfinished[0]}")


def calls_of(decoder: Decoder, params: Params, seats: int, slots: int) -> list[Call]:
    """The calls of an engine's programs: rounds with and without drafts, and a long piece of prompts."""
    programs = Programs(decoder, params, devices_of(params))
    state = programs.state(seats, slots)
    with recording() as calls:
        for drafts in {decoder.max_drafts, 0}:
            replace(programs, decoder=decoder.at_most(drafts)).rounds(state)
        tokens = longest_piece(decoder, state.sequences)
        programs.feeding(state, seats, columns=width_of(1, seats), tokens=tokens)
    return calls.made


def _alone(params: Params) -> bool:
    """Whether this process may choose for itself: others might choose otherwise, and so would other meshes."""
    mesh = devices_of(params)
    return jax.process_count() == 1 and (mesh is None or EXACT not in mesh.shape)
