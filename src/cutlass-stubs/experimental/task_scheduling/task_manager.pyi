from kiln.experimental.task_scheduling.task_manager import *
