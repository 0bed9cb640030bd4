"""GLM-4.5, 4.6 and 4.7: full attention, dense layers first and sparse ones later, and one MTP block."""

from specjax.models.glm4_moe.config import Glm4MoeConfig
from specjax.models.glm4_moe.drafter import Glm4MoeMTP
from specjax.models.glm4_moe.family import FAMILY
from specjax.models.glm4_moe.parameters import parameter_shapes
from specjax.models.glm4_moe.target import Glm4MoeTarget

__all__ = ["FAMILY", "Glm4MoeConfig", "Glm4MoeMTP", "Glm4MoeTarget", "parameter_shapes"]
