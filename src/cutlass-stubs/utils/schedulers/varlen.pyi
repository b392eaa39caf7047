from kiln.utils.schedulers.varlen import *
