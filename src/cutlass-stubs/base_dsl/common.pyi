from kiln.base_dsl.diagnostics import *
