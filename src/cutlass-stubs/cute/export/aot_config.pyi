from kiln.cute.export.aot_config import *
