from kiln.experimental.task_scheduling.ranges import *
