"""What the families have in common: arrays, recorded calls, launches."""
