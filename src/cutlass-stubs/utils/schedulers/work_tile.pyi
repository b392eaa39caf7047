from kiln.utils.schedulers.work_tile import *
