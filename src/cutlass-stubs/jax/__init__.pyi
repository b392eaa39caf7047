from kiln.jax import *
