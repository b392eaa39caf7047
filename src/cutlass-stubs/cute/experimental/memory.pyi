from kiln.cute.experimental.buffers import *
