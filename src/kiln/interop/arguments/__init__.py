"""Arguments of calls: call plans, recorded programs, and the native engine that reads Python's arguments by them."""
