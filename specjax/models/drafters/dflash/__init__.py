"""Block drafters: DFlash, DFlash 2, and DSpark, which is DFlash with a Markov head."""

from specjax.models.drafters.dflash.config import Convolution, DFlashConfig, MarkovHead, Selector
from specjax.models.drafters.dflash.drafter import DFlashDrafter
from specjax.models.drafters.dflash.family import FAMILY
from specjax.models.drafters.dflash.parameters import init_params, parameter_shapes

__all__ = [
    "FAMILY",
    "Convolution",
    "DFlashConfig",
    "DFlashDrafter",
    "MarkovHead",
    "Selector",
    "init_params",
    "parameter_shapes",
]
