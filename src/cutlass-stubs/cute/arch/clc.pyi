from kiln.cute.arch.launch_control import *
