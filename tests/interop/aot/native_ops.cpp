// Kernels of several architectures in one library behind functions of C, as a framework ships them with its operators.
#include "add__sm100a.h"
#include "add__sm90a.h"
#include "row_sums__sm90a.h"
#include <mutex>
#include <stdexcept>
#include <string>

namespace {

struct Tensor {
  const void *const_data;
  int64_t sizes[2], strides[2];
};

void check(int32_t status, const char *message) {
  if (status != 0)
    throw std::runtime_error(message);
}

#define LAUNCHERS(arch)                                                                                                \
  add__##arch##_Kernel_Module_t add__##arch##_module;                                                                  \
  std::once_flag add__##arch##_loaded;                                                                                 \
  void launch_add__##arch(const Tensor &a, const Tensor &b, const Tensor &out, float by, void *stream) {               \
    std::call_once(add__##arch##_loaded, [] { add__##arch##_Kernel_Module_Load(&add__##arch##_module); });             \
    add__##arch##_Tensor_mIn0_t in0;                                                                                   \
    in0.data = const_cast<void *>(a.const_data);                                                                       \
    in0.dynamic_shapes[0] = static_cast<int32_t>(a.sizes[0]);                                                          \
    add__##arch##_Tensor_mIn1_t in1;                                                                                   \
    in1.data = const_cast<void *>(b.const_data);                                                                       \
    in1.dynamic_shapes[0] = static_cast<int32_t>(b.sizes[0]);                                                          \
    add__##arch##_Tensor_mOut0_t out0;                                                                                 \
    out0.data = const_cast<void *>(out.const_data);                                                                    \
    out0.dynamic_shapes[0] = static_cast<int32_t>(out.sizes[0]);                                                       \
    check(cute_dsl_add__##arch##_wrapper(&add__##arch##_module, &in0, &in1, &out0, by, stream),                        \
          add__##arch##_Kernel_Module_Error(&add__##arch##_module));                                                   \
  }

LAUNCHERS(sm90a)
LAUNCHERS(sm100a)

row_sums__sm90a_Kernel_Module_t row_sums__sm90a_module;
std::once_flag row_sums__sm90a_loaded;
void launch_row_sums__sm90a(const Tensor &x, const Tensor &y, void *stream) {
  std::call_once(row_sums__sm90a_loaded,
                 [] { row_sums__sm90a_Kernel_Module_Load(&row_sums__sm90a_module); });
  row_sums__sm90a_Tensor_mX_t in;
  in.data = const_cast<void *>(x.const_data);
  in.dynamic_shapes[0] = static_cast<int32_t>(x.sizes[0]);
  in.dynamic_shapes[1] = static_cast<int32_t>(x.sizes[1]);
  in.dynamic_strides[0] = x.strides[0];
  row_sums__sm90a_Tensor_mY_t out;
  out.data = const_cast<void *>(y.const_data);
  out.dynamic_shapes[0] = static_cast<int32_t>(y.sizes[0]);
  check(cute_dsl_row_sums__sm90a_wrapper(&row_sums__sm90a_module, &in, &out, stream),
        row_sums__sm90a_Kernel_Module_Error(&row_sums__sm90a_module));
}

thread_local std::string message;

template <class Body> const char *guarded(Body body) {
  try {
    body();
    return nullptr;
  } catch (const std::exception &error) {
    message = error.what();
    return message.c_str();
  }
}

} // namespace

// The dispatch of an operator: the kernel of the device's architecture; the message of an error, or null.
extern "C" __attribute__((visibility("default"))) const char *add(int major, const Tensor *a, const Tensor *b,
                                                                  const Tensor *out, float by) {
  return guarded([&] { (major == 9 ? launch_add__sm90a : launch_add__sm100a)(*a, *b, *out, by, nullptr); });
}

extern "C" __attribute__((visibility("default"))) const char *row_sums(const Tensor *x, const Tensor *y) {
  return guarded([&] { launch_row_sums__sm90a(*x, *y, nullptr); });
}
