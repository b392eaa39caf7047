/* Calls three exported functions of the CPU target, with good and with bad arguments; a child process makes the first call. */
#include "gather.h"
#include "say.h"
#include "scale_example.h"
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void) {
  float x[3 * 8], y[3 * 8], six = 6;
  double out[11] = {0}, said[4];
  int32_t extents[2] = {4, 5}, status;
  scale_Tensor_x_t tx = {x, {3, 8}, {8}};
  scale_Tensor_y_t ty = {y, {3, 8}, {8}};
  say_Tensor_x_t ts = {said, {4}};
  gather_Tensor_out_t to = {out};
  gather_Tensor_wide_t tw = {x, 1, (int64_t)1 << 33, 33, {10, 22}};
  scale_Kernel_Module_t module;
  int i, wrong = 0;
  for (i = 0; i < 24; i++)
    x[i] = (float)i, y[i] = -1;
  if (fork() == 0)
    _exit(cute_dsl_scale_wrapper(NULL, &tx, &ty, 2, NULL) || y[23] != 46);
  wait(&status);
  wrong = status != 0;
  if (cute_dsl_say_wrapper(NULL, &ts, 3) || said[0] != 3)
    puts(say_Kernel_Module_Error(NULL));
  status = scale_Kernel_Module_Load(&module);
  status |= cute_dsl_scale_wrapper(&module, &tx, &ty, 3, NULL);
  for (i = 0; i < 24; i++)
    wrong += y[i] != 3 * x[i];
  printf("%s %d\n", status == 0 ? "good" : scale_Kernel_Module_Error(&module), wrong);
  if (cute_dsl_gather_wrapper(NULL, &to, 1, 2, 1, 0.5, extents, &six, &tw, 7))
    puts(gather_Kernel_Module_Error(NULL));
  for (i = 0; i < 11; i++)
    printf("%.12g%c", out[i], i < 10 ? ' ' : '\n');
  ty.dynamic_shapes[1] = 6;
  status = cute_dsl_scale_wrapper(&module, &tx, &ty, 3, NULL);
  printf("%d %s\n", status, scale_Kernel_Module_Error(&module));
  ty.dynamic_shapes[1] = 4;
  status = cute_dsl_scale_wrapper(&module, &tx, &ty, 3, NULL);
  printf("%d %d\n", status, strstr(scale_Kernel_Module_Error(&module), "one symbol") != NULL);
  tx.data = (char *)x + 1;
  status = cute_dsl_scale_wrapper(&module, &tx, &ty, 3, NULL);
  printf("%d %d\n", status, strstr(scale_Kernel_Module_Error(&module), "a multiple of 4") != NULL);
  fflush(stdout);
  status = cute_dsl_say_wrapper(NULL, &ts, 5);
  printf("%d %d\n", status, strstr(say_Kernel_Module_Error(NULL), "assertion failed: n is too large (kernel") != NULL);
  return scale_Kernel_Module_Unload(&module);
}
