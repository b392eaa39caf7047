from kiln.experimental.task_scheduling import *
