"""Tables are looked up by choices between floats."""

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.elementwise import look_up


def test_whole_numbers_of_a_table_are_chosen_among_as_floats() -> None:
    """Mosaic GPU takes chosen integers for numbers without a sign: codebooks with negative entries came out wrong."""
    table, index = (3, -127, 5, -4), jnp.arange(4)
    np.testing.assert_array_equal(look_up(table, index), np.array(table, np.float32))
    program = jax.make_jaxpr(lambda index: look_up(table, index))(index)
    inner = [equation for each in program.eqns if "jaxpr" in each.params for equation in each.params["jaxpr"].eqns]
    chosen = [equation for equation in inner if equation.primitive.name == "select_n"]
    assert len(chosen) == 3
    assert {equation.outvars[0].aval.dtype.name for equation in chosen} == {"float32"}
