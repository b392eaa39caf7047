from kiln.utils.schedulers.persistent import *
