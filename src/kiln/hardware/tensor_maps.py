"""What tensor maps can say of a tensor, in the order of the driver's numbers."""

ELEMENTS = {
    "u8": 8,
    "u16": 16,
    "u32": 32,
    "s32": 32,
    "u64": 64,
    "s64": 64,
    "f16": 16,
    "f32": 32,
    "f64": 64,
    "bf16": 16,
    "f32_ftz": 32,
    "tf32": 32,
    "tf32_ftz": 32,
    "16u4_align8b": 4,
    "16u4_align16b": 4,
    "16u6_align16b": 6,
}
"""Element types, and their bits."""
PTX_ELEMENTS = (
    "u8",
    "u16",
    "u32",
    "s32",
    "u64",
    "s64",
    "f16",
    "f32",
    "f32_ftz",
    "f64",
    "bf16",
    "tf32",
    "tf32_ftz",
    "16u4_align8b",
    "16u4_align16b",
    "16u6_align16b",
)
"""Element types in the order of PTX's numbers, which `tensormap.replace` takes."""
SHARED_BITS = {**ELEMENTS, "16u4_align16b": 8, "16u6_align16b": 8}
"""The bits of an element in shared memory, where 16 elements of 4 or 6 bits may take 16 bytes, the last ones unused."""
SWIZZLES = {"none": 0, "32b": 32, "64b": 64, "128b": 128, "128b_32b": 128}
"""How pieces of 16 bytes (of 32 bytes: "128b_32b", sm_100) are permuted in shared memory, and the bytes a row of the
pattern has."""
