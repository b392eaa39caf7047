"""The C calling convention: signatures and headers of exported functions, and the native code that runs them."""
