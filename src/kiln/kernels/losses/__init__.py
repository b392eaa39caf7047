"""Cross-entropy and its gradient."""
