from kiln.experimental.nvvm_dialect import *
