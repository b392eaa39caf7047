# pyright: reportReturnType=false
"""Launches without Python: native code that loads the kernels of exported code into the driver at the first call.

It fills the table of host code (`launch.py`), and takes the place of `runtime.py`. The driver is looked up at the first
call, so nothing is linked, and a missing driver is an error message.
"""

from __future__ import annotations

from ...native import (
    Array,
    Fn,
    Library,
    Ptr,
    address,
    atomic,
    atomic_load,
    atomic_store,
    extern,
    i32,
    i64,
    inline,
    local,
    native,
    ref,
    struct,
    text,
    u8,
    u32,
    u64,
)
from ..host.exported import ASSERT, Code, Site
from ..host.libc import clock_gettime, dlopen, find_all
from ..host.text_buffer import Text, begin, put, put_form, put_number
from .launch import AFTER, CLOCK, HANDLES, LAUNCH, OWNER, RECENT, SLOW
from .ops.cute import FAULT_HEADER, FAULT_RECORD, FAULT_VALUES
from .recent_launches import ENTRIES, WORDS

PLAIN, FAMILY, FEATURES = range(3)
"""Devices of an image: also later ones of its major version, those of its family, or one capability only."""
PRINTS = 1
ASSERTS = 2
DEVICES = 32
"""The most devices that may run different code."""
_RTLD_NOW = 2
_RELAXED = 2
_NOT_INITIALIZED = 3
_INVALID_CONTEXT = 201
_NO_BINARY = 209
_NOT_FOUND = 500
_MEMORY_TYPE = 2
_DEVICE_MEMORY = 2
_MAJOR = 75
_MINOR = 76
_SMEM = 97
_DYNAMIC_SMEM = 8
_NON_PORTABLE = 14


@struct
class Image:
    """Code of a GPU: a cubin, or PTX that the driver compiles."""

    data: Ptr
    capability: i32
    """10 times the major version, and the minor one."""
    kind: i32
    ptx: i32
    name: Ptr


@struct
class Kernel:
    name: Ptr
    dynamic: i32
    """Whether it may take all shared memory there is, beyond its static."""
    static_smem: i32
    cluster: i32
    """Whether its clusters may be larger than what is portable."""
    reports: i32


@struct
class Variant:
    """The code for one architecture, and its state in this process."""

    code: Code
    table: Ptr[u64]
    kernels: Ptr[Kernel]
    kernel_count: i64
    images: Ptr[Image]
    image_count: i64
    device_sites: Ptr[Site]
    library: u64
    fault: Array[i64, 16]
    """The fault record of a failed assertion: site + 1, indices, values."""


@struct
class Module:
    """A function's kernels."""

    variants: Ptr[Variant]
    count: i64
    lock: u64
    only: u64
    """The variant that all devices run, once it is loaded."""
    chosen: Array[u64, DEVICES]
    """The variant that each device runs."""


@struct
class Driver:
    """Functions of the driver."""

    ready: i64
    cuInit: u64
    cuCtxGetCurrent: u64
    cuCtxSetCurrent: u64
    cuCtxPushCurrent_v2: u64
    cuCtxPopCurrent_v2: u64
    cuCtxGetDevice: u64
    cuDevicePrimaryCtxRetain: u64
    cuDeviceGetCount: u64
    cuDeviceGetAttribute: u64
    cuLibraryLoadData: u64
    cuLibraryUnload: u64
    cuLibraryGetKernel: u64
    cuLibraryGetGlobal: u64
    cuKernelSetAttribute: u64
    cuLaunchKernelEx: u64
    cuStreamIsCapturing: u64
    cuStreamSynchronize: u64
    cuThreadExchangeStreamCaptureMode: u64
    cuMemcpyDtoH_v2: u64
    cuMemsetD8_v2: u64
    cuPointerGetAttribute: u64
    cuGetErrorName: u64
    cuGetErrorString: u64


_FUNCTIONS = "".join(f"{name}\0" for name in Driver.__kiln_fields__ if name != "ready")
"""The names of the driver's functions, in the order of their fields."""
loading: Library = Library("cuda_loader", prefix="kiln_cuda_", passes=1, opt=1, small=True)
driver = loading.variable("driver", Driver)
finding = loading.variable("finding", u64)
"""A lock that is held while the driver is looked for."""
ring = loading.variable("ring", Array[u64, WORDS * (ENTRIES + 1)])
"""The ring of recent launches, which host code writes and nobody reads here."""


@extern
def sched_yield() -> i32: ...


@extern
def fflush(stream: Ptr) -> i32: ...


@native
def take_lock(lock: Ptr[u64]) -> None:
    while atomic("xchg", lock, 1, "acquire") != 0:
        sched_yield()


@inline
def leave_lock(lock):
    atomic_store(lock, 0, "release")


# --- the driver ------------------------------------------------------------------------------------------------------


@native
def find_functions(said: Ptr[Text]) -> i32:
    library = dlopen(text("libcuda.so.1"), _RTLD_NOW)
    if library == None:
        put(said, text("there is no CUDA driver: libcuda.so.1 was not found"))
        return _NOT_INITIALIZED
    missing = find_all(library, text(_FUNCTIONS), ref(driver.place).cuInit)
    if missing != None:
        put(said, text("the CUDA driver lacks "))
        put(said, missing)
        put(said, text(": it is older than CUDA 12"))
        return _NOT_FOUND
    status = Fn[[u32], i32](driver.place.cuInit)(0)
    if status != 0:
        put(said, text("the CUDA driver does not start"))
        explain(said, status)
    return status


@native
def find_driver(said: Ptr[Text]) -> i32:
    """Return 0 if the driver is there and its functions were found."""
    place = ref(driver.place).ready
    if atomic_load(place, "acquire") != 0:
        return 0
    take_lock(finding.place)
    status = i32(0)
    if place[0] == 0:
        status = find_functions(said)
        if status == 0:
            atomic_store(place, 1, "release")
    leave_lock(finding.place)
    return status


@loading.export
def explain(said: Ptr[Text], status: i32) -> None:
    """Append the driver's text for a status."""
    put(said, text(": "))
    words = local(u64)
    cuda = driver.place
    words[0] = 0
    if cuda.cuGetErrorName != 0 and Fn[[i32, Ptr], i32](cuda.cuGetErrorName)(status, words) == 0:
        put(said, Ptr(words[0]))
    put(said, text(" (error "))
    put_number(said, i64(status))
    put(said, text(")"))
    words[0] = 0
    if cuda.cuGetErrorString != 0 and Fn[[i32, Ptr], i32](cuda.cuGetErrorString)(status, words) == 0:
        put(said, text(", "))
        put(said, Ptr(words[0]))


@native
def ensure_context() -> i32:
    """Give this thread a context if it has none: the primary one of device 0."""
    context = local(u64)
    cuda = driver.place
    context[0] = 0
    status = Fn[[Ptr], i32](cuda.cuCtxGetCurrent)(context)
    if status == 0 and context[0] == 0:
        status = Fn[[Ptr, i32], i32](cuda.cuDevicePrimaryCtxRetain)(context, 0)
        if status == 0:
            status = Fn[[u64], i32](cuda.cuCtxSetCurrent)(context[0])
    return status


@loading.export
def enter(device: i32, said: Ptr[Text]) -> i32:
    """Make a device current; return 0 if it was, 1 if `leave` has to restore the previous one, negative after an
    error."""
    status = find_driver(said)
    if status != 0:
        return 0 - status
    now = local(i32)
    cuda = driver.place
    context = local(u64)
    if Fn[[Ptr], i32](cuda.cuCtxGetDevice)(now) == 0 and now[0] == device:
        return 0
    status = Fn[[Ptr, i32], i32](cuda.cuDevicePrimaryCtxRetain)(context, device)
    if status == 0:
        status = Fn[[u64], i32](cuda.cuCtxPushCurrent_v2)(context[0])
    if status != 0:
        put(said, text("cannot use CUDA device "))
        put_number(said, i64(device))
        explain(said, status)
        return 0 - status
    return 1


@loading.export
def has(where: u64) -> bool:
    """Return whether memory belongs to a GPU; for address 0, whether there is a GPU."""
    said = local(Text)
    memory = local(u8, 256)
    kind = local(i64)
    begin(said, memory, 256)
    if find_driver(said) != 0:
        return False
    if where == 0:
        return True
    ask = Fn[[Ptr, i32, u64], i32](driver.place.cuPointerGetAttribute)
    kind[0] = 0
    status = ask(kind, _MEMORY_TYPE, where)
    if status == _INVALID_CONTEXT:
        if ensure_context() == 0:
            status = ask(kind, _MEMORY_TYPE, where)
    return status == 0 and kind[0] == _DEVICE_MEMORY


@loading.export
def leave() -> None:
    """Restore the previous device."""
    before = local(u64)
    Fn[[Ptr], i32](driver.place.cuCtxPopCurrent_v2)(before)


# --- loading ---------------------------------------------------------------------------------------------------------


@native
def attribute(number: i32, device: i32) -> i32:
    value = local(i32)
    value[0] = 0
    Fn[[Ptr, i32, i32], i32](driver.place.cuDeviceGetAttribute)(value, number, device)
    return value[0]


@native
def merit(image: Ptr[Image], capability: i32) -> i32:
    """Return the preference of an image for a device: 0 if it cannot run; its own code before compatible code before
    PTX."""
    built_for = image.capability
    kind = image.kind
    if image.ptx != 0:
        return 1000 + built_for if kind == PLAIN and built_for <= capability else i32(0)
    if kind == FEATURES:
        return 4000 + built_for if built_for == capability else i32(0)
    if built_for // 10 != capability // 10 or built_for > capability:
        return 0
    return built_for + (3000 if kind == FAMILY else 2000)


@native
def fill(variant: Ptr[Variant], image: Ptr[Image], said: Ptr[Text]) -> i32:
    """Load an image and let host code launch its kernels."""
    cuda = driver.place
    library = local(u64)
    kernel = local(u64)
    load = Fn[[Ptr, Ptr, Ptr, Ptr, u32, Ptr, Ptr, u32], i32](cuda.cuLibraryLoadData)
    status = load(library, image.data, None, None, 0, None, None, 0)
    if status != 0:
        put(said, text("cannot load the kernels for "))
        put(said, image.name)
        explain(said, status)
        return status
    table = variant.table
    devices = local(i32)
    devices[0] = 1
    Fn[[Ptr], i32](cuda.cuDeviceGetCount)(devices)
    for number in range(variant.kernel_count):
        about = ref(variant.kernels)[number]
        status = Fn[[Ptr, u64, Ptr], i32](cuda.cuLibraryGetKernel)(kernel, library[0], about.name)
        if status != 0:
            put(said, text("cannot find the kernel "))
            put(said, about.name)
            explain(said, status)
            Fn[[u64], i32](cuda.cuLibraryUnload)(library[0])
            return status
        allow = Fn[[i32, i32, u64, i32], i32](cuda.cuKernelSetAttribute)
        for device in range(devices[0]):
            if about.dynamic != 0:
                allow(_DYNAMIC_SMEM, attribute(_SMEM, device) - about.static_smem, kernel[0], device)
            if about.cluster != 0:
                allow(_NON_PORTABLE, 1, kernel[0], device)
        table[HANDLES + number] = kernel[0]
    table[LAUNCH] = cuda.cuLaunchKernelEx
    table[SLOW] = address(slow)
    table[AFTER] = address(after)
    table[OWNER] = address(variant)
    table[RECENT] = address(ring.place)
    table[CLOCK] = address(clock_gettime)
    variant.library = library[0]
    return 0


@native
def load_for(module: Ptr[Module], device: i32, said: Ptr[Text]) -> i32:
    """Load the best image for a device, unless it is loaded."""
    capability = 10 * attribute(_MAJOR, device) + attribute(_MINOR, device)
    best = i32(0)
    variant = Ptr[Variant](None)
    image = Ptr[Image](None)
    for number in range(module.count):
        each = ref(module.variants)[number]
        for position in range(each.image_count):
            value = merit(ref(each.images)[position], capability)
            if value > best:
                best = value
                variant = each
                image = ref(each.images)[position]
    if best == 0:
        put(said, text("this was compiled for"))
        for number in range(module.count):
            each = ref(module.variants)[number]
            for position in range(each.image_count):
                put(said, text(" "))
                put(said, each.images[position].name)
        put(said, text(", and the GPU has compute capability "))
        put_number(said, i64(capability // 10))
        put(said, text("."))
        put_number(said, i64(capability % 10))
        return _NO_BINARY
    status = i32(0)
    if variant.library == 0:
        mode = local(i32)
        exchange = Fn[[Ptr], i32](driver.place.cuThreadExchangeStreamCaptureMode)
        mode[0] = _RELAXED
        exchange(mode)
        status = fill(variant, image, said)
        exchange(mode)
    if status == 0:
        atomic_store(ref(module.chosen)[device], address(variant), "release")
        devices = local(i32)
        devices[0] = 0
        Fn[[Ptr], i32](driver.place.cuDeviceGetCount)(devices)
        if devices[0] == 1:
            atomic_store(ref(module).only, address(variant), "release")
    return status


@native
def choose_slowly(module: Ptr[Module], said: Ptr[Text], status: Ptr[i32]) -> Ptr[Variant]:
    status[0] = find_driver(said)
    if status[0] != 0:
        return None
    device = local(i32)
    device[0] = 0
    status[0] = ensure_context()
    if status[0] == 0:
        status[0] = Fn[[Ptr], i32](driver.place.cuCtxGetDevice)(device)
    if status[0] != 0 or device[0] >= DEVICES:
        put(said, text("no CUDA device can be used"))
        explain(said, status[0])
        status[0] = status[0] if status[0] != 0 else i32(_NO_BINARY)
        return None
    place = ref(module.chosen)[device[0]]
    if atomic_load(place, "acquire") == 0:
        take_lock(ref(module).lock)
        if place[0] == 0:
            status[0] = load_for(module, device[0], said)
        leave_lock(ref(module).lock)
    return Ptr[Variant](place[0])


@loading.export
def choose(module: Ptr[Module], said: Ptr[Text], status: Ptr[i32]) -> Ptr[Code]:
    """Return the code that the current device runs, loaded; null after an error."""
    only = atomic_load(ref(module).only, "acquire")
    if only != 0:
        return Ptr[Code](only)
    return Ptr[Code](Ptr(choose_slowly(module, said, status)))


@loading.export
def unload(module: Ptr[Module]) -> i32:
    """Unload the kernels, without waiting for running ones."""
    status = i32(0)
    take_lock(ref(module).lock)
    atomic_store(ref(module).only, 0, "release")
    for device in range(DEVICES):
        atomic_store(ref(module.chosen)[device], 0, "release")
    for number in range(module.count):
        each = ref(module.variants)[number]
        if each.library != 0:
            for kernel in range(each.kernel_count):
                each.table[HANDLES + kernel] = 0
            result = Fn[[u64], i32](driver.place.cuLibraryUnload)(each.library)
            status = result if result != 0 else status
            each.library = 0
    leave_lock(ref(module).lock)
    return status


# --- called by host code ---------------------------------------------------------------------------------------------


@native
def slow(index: i32, site: i32, status: i32, config: Ptr, arguments: Ptr, variant: Ptr[Variant]) -> i32:
    """Handle a failed launch: give the thread a context if it has none, and retry. Returns the driver's status."""
    if status != _INVALID_CONTEXT:
        return status if status > 0 else i32(_NOT_FOUND)
    result = ensure_context()
    if result != 0:
        return result
    launch = Fn[[Ptr, u64, Ptr, Ptr], i32](driver.place.cuLaunchKernelEx)
    return launch(config, variant.table[HANDLES + index], arguments, None)


@native
def after(index: i32, site: i32, stream: u64, variant: Ptr[Variant]) -> i32:
    """Wait for a kernel that prints or asserts, except during capture, and read its fault."""
    cuda = driver.place
    capturing = local(i32)
    capturing[0] = 0
    Fn[[u64, Ptr], i32](cuda.cuStreamIsCapturing)(stream, capturing)
    if capturing[0] != 0:
        return 0
    status = Fn[[u64], i32](cuda.cuStreamSynchronize)(stream)
    if status != 0:
        return status
    reports = variant.kernels[index].reports
    if reports & PRINTS != 0:
        fflush(None)
    if reports & ASSERTS == 0:
        return 0
    where = local(u64)
    size = local(u64)
    status = Fn[[Ptr, Ptr, u64, Ptr], i32](cuda.cuLibraryGetGlobal)(where, size, variant.library, text(FAULT_RECORD))
    if status != 0:
        return status
    record = local(u8, 4 * FAULT_HEADER + 8 * FAULT_VALUES)
    status = Fn[[Ptr, u64, u64], i32](cuda.cuMemcpyDtoH_v2)(record, where[0], size[0])
    words = Ptr[i32](Ptr(record))
    if status != 0 or words[0] == 0:
        return status
    Fn[[u64, u8, u64], i32](cuda.cuMemsetD8_v2)(where[0], 0, size[0])
    for number in range(7):
        variant.fault[number] = i64(words[1 + number])
    values = Ptr[i64](Ptr(record) + 4 * FAULT_HEADER)
    for number in range(FAULT_VALUES):
        variant.fault[7 + number] = values[number]
    variant.fault[15] = 1
    return ASSERT


@loading.export
def assertion(variant: Ptr[Variant], said: Ptr[Text]) -> bool:
    """Return whether an assertion in a kernel failed, and write its message."""
    fault = Ptr[i64](ref(variant).fault)
    if fault[15] == 0:
        return False
    fault[15] = 0
    site = variant.device_sites + fault[0]
    put_form(said, site.form, fault + 7)
    put(said, text(" (kernel "))
    put(said, site.kernel)
    put_form(said, text(", block (%d, %d, %d), thread (%d, %d, %d))"), fault + 1)
    return True


@loading.export
def clock() -> u64:
    """Return 0 in place of the cycle counter, which exported code does not need."""
    return 0
