from kiln.interop.jax.call import *
