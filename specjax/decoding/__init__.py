"""Decoding as functions from state to state: `begin`, then `decode_round` or `decode_chunk` as often as you like."""

from specjax.decoding.begin import begin
from specjax.decoding.decoder import Decoder, DecodeState
from specjax.decoding.grammar import Constraint, Grammar
from specjax.decoding.loop import ChunkRecord, decode_chunk
from specjax.decoding.record import RoundRecord
from specjax.decoding.round import decode_round

__all__ = [
    "ChunkRecord",
    "Constraint",
    "DecodeState",
    "Decoder",
    "Grammar",
    "RoundRecord",
    "begin",
    "decode_chunk",
    "decode_round",
]
