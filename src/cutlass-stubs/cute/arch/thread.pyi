from kiln.cute.arch.thread import *
