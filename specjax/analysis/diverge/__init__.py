"""Where two texts that should be equal part, and why: logits, rounding, and the state of runs part by part."""

from specjax.analysis.diverge.deviation import Deviation
from specjax.analysis.diverge.diverge import diverge
from specjax.analysis.diverge.judging import Candidate, Difference
from specjax.analysis.diverge.report import DivergenceReport, Looked
from specjax.analysis.diverge.states import StateCheck

__all__ = ["Candidate", "Deviation", "Difference", "DivergenceReport", "Looked", "StateCheck", "diverge"]
