from kiln.cute.experimental.at_launch import *
