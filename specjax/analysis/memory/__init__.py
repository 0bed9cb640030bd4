"""What fits: memory of devices, parameters, states, and an estimate of what programs need besides."""

from specjax.analysis.memory.devices import DEVICES, Device
from specjax.analysis.memory.plan import MemoryPlan, bytes_on_device, plan_memory

__all__ = ["DEVICES", "Device", "MemoryPlan", "bytes_on_device", "plan_memory"]
