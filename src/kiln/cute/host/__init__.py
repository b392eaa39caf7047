"""Arguments of programs: arrays, tensors and pointers of the host, streams, symbols, and how they are passed."""
