from kiln.interop.jax.spec import *
