"""GPUs: architectures with their features and limits, known devices, the one programs are compiled for, and the driver."""

from . import bank_conflicts, options, settings
