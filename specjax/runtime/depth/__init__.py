"""How many drafts a round makes where that is left to the program, `draft="auto"`.

`rates.py` keeps how often drafts are accepted, `costs.py` what rounds take, `control.py` decides. None of them knows of
devices, models or clocks: numbers go in, and a depth comes out.
"""
