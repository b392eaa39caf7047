"""Hello from one thread of 32, and from the host that launched them.

Run it with `kiln run examples/hello_world.py`.
"""

import kiln.cute as cute


@cute.kernel
def hello_kernel():
    tid, _, _ = cute.arch.thread_idx()
    if tid == 0:
        cute.printf("Hello from thread {} of the kernel", tid)


@cute.jit
def hello():
    cute.printf("Hello from the host")
    hello_kernel().launch(grid=(1, 1, 1), block=(32, 1, 1))


if __name__ == "__main__":
    print("tracing, compiling, running:")
    hello()
