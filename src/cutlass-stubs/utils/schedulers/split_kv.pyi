from kiln.utils.schedulers.split_kv import *
