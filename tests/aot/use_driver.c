/* Loads, calls and unloads functions whose kernels are a GPU's; eight threads make the first call of one. */
#include "say.h"
#include "scale.h"
#include <pthread.h>

static scale_Tensor_x_t x = {NULL, {3, 8}, {8}};
static scale_Tensor_y_t y = {NULL, {3, 8}, {8}};

static void *again(void *unused) {
  int32_t status = cute_dsl_scale_wrapper(NULL, &x, &y, 3, (void *)16);
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
    status = cute_dsl_scale_wrapper(&module, &x, &y, 3, (void *)8);
    printf("%d %s\n", status, scale_Kernel_Module_Error(&module));
    scale_Kernel_Module_Unload(&module);
    if (!status) {
      for (i = 0; i < 8; i++)
        pthread_create(&threads[i], NULL, again, NULL);
      for (i = 0; i < 8; i++)
        pthread_join(threads[i], NULL);
    }
  }
  status = cute_dsl_say_wrapper(NULL, &s, 3);
  printf("%d %s\n", status, say_Kernel_Module_Error(NULL));
  return 0;
}
