"""Functions of the C library that native code calls."""
# pyright: reportReturnType=false

from __future__ import annotations

from ...native import Fn, Ptr, address, extern, i32, i64, native, u8, u32, u64


@extern
def malloc(bytes_: u64) -> Ptr: ...


@extern
def realloc(memory: Ptr, bytes_: u64) -> Ptr: ...


@extern
def aligned_alloc(alignment: u64, bytes_: u64) -> Ptr: ...


@extern
def free(memory: Ptr) -> None: ...


@extern
def memcpy(target: Ptr, source: Ptr, bytes_: u64) -> Ptr: ...


@extern
def memset(target: Ptr, byte: i32, bytes_: u64) -> Ptr: ...


@extern
def open_memstream(text: Ptr[Ptr], size: Ptr[u64]) -> Ptr: ...


@extern
def fclose(stream: Ptr) -> i32: ...


@extern
def clock_gettime(clock: i32, time: Ptr[i64]) -> i32: ...


@extern
def pthread_create(handle: Ptr[u64], attributes: Ptr, body: Fn[[Ptr], Ptr], argument: Ptr) -> i32: ...


@extern
def pthread_join(handle: u64, result: Ptr) -> i32: ...


@extern
def pthread_mutex_lock(mutex: Ptr) -> i32: ...


@extern
def pthread_mutex_unlock(mutex: Ptr) -> i32: ...


@extern
def pthread_cond_wait(condition: Ptr, mutex: Ptr) -> i32: ...


@extern
def pthread_cond_broadcast(condition: Ptr) -> i32: ...


@extern
def sem_init(semaphore: Ptr, shared: i32, value: i32) -> i32: ...


@extern
def sem_post(semaphore: Ptr) -> i32: ...


@extern
def sem_timedwait(semaphore: Ptr, deadline: Ptr[i64]) -> i32: ...


@extern
def signal(number: i32, handler: Ptr) -> Ptr: ...


@extern(attributes=("returns_twice",))
def _setjmp(place: Ptr) -> i32: ...


@extern
def longjmp(place: Ptr, value: i32) -> None: ...


@extern
def pthread_getspecific(key: u32) -> Ptr: ...


@extern
def pthread_setspecific(key: u32, value: Ptr) -> i32: ...


@extern
def usleep(microseconds: u32) -> i32: ...


@extern
def pthread_self() -> u64: ...


@extern
def pthread_sigmask(how: i32, signals: Ptr, before: Ptr) -> i32: ...


@extern
def sigaltstack(stack: Ptr, before: Ptr) -> i32: ...


@extern(name="raise")
def raise_(number: i32) -> i32: ...


@extern
def write(file: i32, text: Ptr, bytes_: u64) -> i64: ...


@extern
def strlen(text: Ptr) -> u64: ...


@extern
def calloc(count: u64, bytes_: u64) -> Ptr: ...


@extern
def dlopen(name: Ptr, flags: i32) -> Ptr: ...


@extern
def dlsym(library: Ptr, name: Ptr) -> Ptr: ...


@native
def find_all(library: Ptr, names: Ptr[u8], places: Ptr[u64]) -> Ptr[u8]:
    """Look up functions by a list of zero-terminated names that ends with an empty one.

    Returns null, or the first name that is not found.
    """
    name = names
    place = places
    while name[0] != 0:
        place[0] = address(dlsym(library, name))
        if place[0] == 0:
            return name
        name += strlen(name) + 1
        place += 1
    return None
