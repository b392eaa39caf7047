from kiln.pipeline import *
