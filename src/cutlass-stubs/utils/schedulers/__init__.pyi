from kiln.utils.schedulers import *
