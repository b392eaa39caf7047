from kiln.experimental.task_scheduling.memory import *
