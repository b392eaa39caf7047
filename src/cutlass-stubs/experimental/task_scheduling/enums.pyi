from kiln.experimental.task_scheduling.enums import *
