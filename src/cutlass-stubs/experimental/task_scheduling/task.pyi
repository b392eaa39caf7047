from kiln.experimental.task_scheduling.task import *
