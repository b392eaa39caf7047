"""What `kiln new` writes: one contract for each kind of kernel. Each is a program as it stands; `my_kernel` is replaced."""
