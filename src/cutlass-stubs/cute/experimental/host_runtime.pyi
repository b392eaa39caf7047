from kiln.cute.experimental.host_runtime import *
