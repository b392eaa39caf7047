from kiln.utils.schedulers.grouped_rows import *
