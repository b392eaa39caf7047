"""Parts that the lowerings of all targets share: builders, handler tables, fix-ups of LLVM text, sites that can
fail."""
