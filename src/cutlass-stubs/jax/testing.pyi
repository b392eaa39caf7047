from kiln.jax.testing import *
