"""What programs are called with: arrays, tensors and pointers of the host, streams, symbols, and how they become arguments."""
