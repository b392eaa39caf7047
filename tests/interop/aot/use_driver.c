/* Loads, calls and unloads functions whose kernels are a GPU's; eight threads make the first call of one. */
#include "boxes.h"
#include "either.h"
#include "say.h"
#include "scale.h"
#include <pthread.h>

static scale_Tensor_x_t x = {NULL, {3, 8}, {8}};
static scale_Tensor_y_t y = {NULL, {3, 8}, {8}};

/* What TVM-FFI has of this. */
typedef struct {
  int32_t type, length;
  void *value;
} any;
typedef struct {
  void *data;
  int32_t device, device_number, rank;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t *shape, *strides;
  uint64_t offset;
} dl_tensor;
int __tvm_ffi_scale(void *handle, const any *arguments, int32_t count, any *result);
void TVMFFIErrorSetRaisedFromCStr(const char *kind, const char *text);
void *TVMFFIEnvGetStream(int32_t device, int32_t number);
void TVMFFIErrorSetRaisedFromCStr(const char *kind, const char *text) { printf("%s: %s\n", kind, text); }
void *TVMFFIEnvGetStream(int32_t device, int32_t number) { return (void *)(intptr_t)(16 * device + number); }

static void call_by_tvm_ffi(int number, int64_t columns) {
  int64_t shape[2] = {3, 8};
  dl_tensor tensor = {(void *)4096, 2, number, 2, 2, 32, 1, shape, NULL, 0};
  any arguments[3] = {{7, 0, &tensor}, {7, 0, &tensor}, {1, 0, (void *)3}}, result = {0, 0, NULL};
  shape[1] = columns;
  printf("%d\n", __tvm_ffi_scale(NULL, arguments, 3, &result));
}

static void *again(void *unused) {
  int32_t status = cute_dsl_scale_wrapper(NULL, &x, &y, 3);
  (void)unused;
  if (status)
    printf("a thread: %d\n", status);
  return NULL;
}

int main(void) {
  scale_Kernel_Module_t module;
  say_Tensor_x_t s = {NULL, {4}};
  pthread_t threads[8];
  int i, status = scale_Kernel_Module_Load(&module);
  printf("%d %s\n", status, scale_Kernel_Module_Error(&module));
  if (!status) {
    status = cute_dsl_scale_wrapper(&module, &x, &y, 3);
    printf("%d %s\n", status, scale_Kernel_Module_Error(&module));
    scale_Kernel_Module_Unload(&module);
    if (!status) {
      for (i = 0; i < 8; i++)
        pthread_create(&threads[i], NULL, again, NULL);
      for (i = 0; i < 8; i++)
        pthread_join(threads[i], NULL);
    }
  }
  if (getenv("FAKE_DEVICES")) {
    call_by_tvm_ffi(1, 8);
    call_by_tvm_ffi(0, 8);
    call_by_tvm_ffi(0, 6);
    call_by_tvm_ffi(7, 8);
  }
  status = cute_dsl_say_wrapper(NULL, &s, 3);
  printf("%d %s\n", status, say_Kernel_Module_Error(NULL));
  if (getenv("FAKE_MAPS")) {
    boxes_Tensor_x_t in = {(void *)4096, {16, 64}, {64}};
    boxes_Tensor_y_t out = {(void *)8192, {16, 64}, {64}};
    status = cute_dsl_boxes_wrapper(NULL, &in, &out);
    if (status)
      printf("%d %s\n", status, boxes_Kernel_Module_Error(NULL));
  }
  if (getenv("FAKE_MAPS") && getenv("FAKE_MEMORY")) {
    boxes_Tensor_x_t in = {(void *)4100, {16, 64}, {64}};
    boxes_Tensor_y_t out = {(void *)8192, {16, 64}, {64}};
    printf("%d %s\n", cute_dsl_boxes_wrapper(NULL, &in, &out), boxes_Kernel_Module_Error(NULL));
  }
  { /* by the GPU or by the host */
    float from[8] = {0, 1, 2, 3, 4, 5, 6, 7}, to[8] = {0};
    either_Tensor_x_t a = {from, {2, 4}, {4}};
    either_Tensor_y_t b = {to, {2, 4}, {4}};
    either_Kernel_Module_t either;
    int loaded = either_Kernel_Module_Load(&either);
    status = cute_dsl_either_wrapper(&either, &a, &b, 3);
    either_Kernel_Module_Unload(&either);
    printf("either: %d %d %g\n", loaded, status, to[7]);
  }
  return 0;
}
