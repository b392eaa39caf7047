from kiln.cute.experimental.collectives import *
