from kiln.utils.schedulers.clc import *
