"""EAGLE-3: a decoder of a layer or a few over tokens and features that are fused from layers of the target."""

from specjax.models.drafters.eagle3.config import Eagle3Config
from specjax.models.drafters.eagle3.drafter import Eagle3Drafter
from specjax.models.drafters.eagle3.family import FAMILY
from specjax.models.drafters.eagle3.parameters import init_params, parameter_shapes

__all__ = ["FAMILY", "Eagle3Config", "Eagle3Drafter", "init_params", "parameter_shapes"]
