from kiln.cute import *
