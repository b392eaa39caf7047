from kiln.experimental.cuda import *
