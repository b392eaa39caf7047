"""TVM-FFI's calling convention, in this process and in exported objects."""
