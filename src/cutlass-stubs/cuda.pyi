from kiln.cuda import *
