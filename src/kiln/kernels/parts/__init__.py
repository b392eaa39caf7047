"""Device code that several kernel families share."""
