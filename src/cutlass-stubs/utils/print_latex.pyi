from kiln.cute.pictures.draw import *
