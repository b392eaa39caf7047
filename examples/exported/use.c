/* Calls libscale.so (export.py): cc -Ibuild use.c -Lbuild -lscale -Wl,-rpath,build */
#include "libscale.h"

int main(void) {
  float x[8] = {0, 1, 2, 3, 4, 5, 6, 7}, y[8]; /* memory of the host, or of cudaMalloc: each is taken where it is */
  scale_Tensor_x_t tx = {x, {2, 4}, {4}};
  scale_Tensor_y_t ty = {y, {2, 4}, {4}};
  if (cute_dsl_scale_wrapper(NULL, &tx, &ty, 3)) {
    fprintf(stderr, "%s\n", scale_Kernel_Module_Error(NULL));
    return 1;
  }
  return y[7] == 21 ? 0 : 1;
}
