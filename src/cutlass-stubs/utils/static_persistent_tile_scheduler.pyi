from kiln.utils.schedulers.static_persistent import *
