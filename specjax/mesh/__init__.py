"""Several devices: a program runs on all of them, each with a smaller model of its own.

`shards.py` is the one wrapper around programs, and what their layers say to other devices. `plan.py` says which part of
each parameter and of each state a device has. `hosts.py` is for several processes. Nothing else
in the project knows of devices.
"""
