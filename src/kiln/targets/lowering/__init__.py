"""What the lowerings of all targets share: building and finding operations, LLVM's text and passes, places that can fail."""
