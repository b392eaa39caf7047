"""Settings of the CPU target."""

from __future__ import annotations

from ..base_dsl.settings import Setting, cores, register, seconds, whole_number

register(
    Setting(
        "KILN_CPU_THREADS",
        "1 to 256",
        cores,
        "OS threads the CPU target may use for one launch. Unset: one for each core this process may use.",
        whole_number(1, 256),
    ),
    Setting(
        "KILN_CPU_SEED",
        "an integer of at least 0",
        0,
        "A schedule for the CPU target: the order of threads and blocks, and when asynchronous copies land. All blocks run on one OS thread then, so that a run can be repeated. 0: in order, and at once.",
        whole_number(0, (1 << 63) - 1),
    ),
    Setting(
        "KILN_CPU_TIMEOUT",
        "seconds",
        0.0,
        "How long a launch on the CPU target may take; then it is stopped and says where each warp was. 0: as long as it likes.",
        seconds,
    ),
    Setting(
        "KILN_CPU_MAX_STEPS",
        "an integer of at least 0",
        0,
        "How many steps a launch on the CPU target may take; then it is stopped and says where each warp was. A thread takes a step when it goes on after a wait and in each iteration of a loop. 0: as many as it likes.",
        whole_number(0, (1 << 62) - 1),
    ),
    Setting(
        "KILN_CPU_OPT",
        "0 to 3",
        2,
        "LLVM optimization level of the CPU target where the program does not choose one.",
        whole_number(0, 3),
    ),
)
