/* A CUDA driver that runs nothing: it tells what it is asked for on stdout, and answers as the environment says.
 *
 * FAKE_CAPABILITY=90 is the compute capability, FAKE_DEVICES=1 how many devices there are, FAKE_CAPTURING=1 whether streams are
 * being captured, FAKE_MEMORY=2 that all memory is the GPU's, FAKE_FAULT=1 whether kernels have failed assertions, and FAKE_<function>=<status> what a function returns.
 * Built with -DOLD it lacks a function.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static __thread int context; /* a device and 1 */
static __thread int pushed;

static int number(const char *name, int otherwise) {
  const char *found = getenv(name);
  return found ? atoi(found) : otherwise;
}

#define ANSWER(name)                                                                                                   \
  do {                                                                                                                 \
    int status = number("FAKE_" #name, 0);                                                                            \
    if (status)                                                                                                        \
      return status;                                                                                                   \
  } while (0)

int cuInit(unsigned flags) { (void)flags; ANSWER(cuInit); puts("cuInit"); return 0; }
int cuCtxGetCurrent(void **found) { *found = (void *)(size_t)context; return 0; }
int cuCtxSetCurrent(void *now) { context = (int)(size_t)now; printf("context of device %d\n", context - 1); return 0; }
int cuCtxPushCurrent_v2(void *now) {
  pushed = context;
  context = (int)(size_t)now;
  printf("push device %d\n", context - 1);
  return 0;
}
int cuCtxPopCurrent_v2(void **before) { *before = 0; context = pushed; puts("pop"); return 0; }
int cuCtxGetDevice(int *device) {
  if (!context)
    return 201;
  *device = context - 1;
  return 0;
}
int cuDevicePrimaryCtxRetain(void **found, int device) {
  if (device >= number("FAKE_DEVICES", 1))
    return 101;
  *found = (void *)(size_t)(device + 1);
  return 0;
}
int cuDeviceGetCount(int *count) { *count = number("FAKE_DEVICES", 1); return 0; }
int cuDeviceGetAttribute(int *value, int which, int device) {
  int capability = number("FAKE_CAPABILITY", 90) + 10 * device;
  *value = which == 75 ? capability / 10 : which == 76 ? capability % 10 : 232448;
  return 0;
}
#ifndef OLD
int cuLibraryLoadData(void **library, const void *image, void *a, void *b, unsigned c, void *d, void *e, unsigned f) {
  (void)a, (void)b, (void)c, (void)d, (void)e, (void)f;
  ANSWER(cuLibraryLoadData);
  if (memcmp(image, "\177ELF", 4))
    printf("load PTX, aligned %d\n", (size_t)image % 16 == 0);
  else /* what it is for stands in the flags of its header */
    printf("load sm_%d cubin, aligned %d\n", ((const unsigned char *)image)[49], (size_t)image % 16 == 0);
  *library = (void *)image;
  return 0;
}
#endif
int cuLibraryUnload(void *library) { (void)library; puts("unload"); return 0; }
int cuLibraryGetKernel(void **kernel, void *library, const char *name) {
  (void)library;
  ANSWER(cuLibraryGetKernel);
  *kernel = (void *)name;
  return 0;
}
static int record[24] = {1, 0, 1, 2, 3, 4, 5, 6, 7};
int cuLibraryGetGlobal(void **place, size_t *size, void *library, const char *name) {
  (void)library;
  *place = record;
  *size = sizeof record;
  return strcmp(name, "kiln_fault") ? 500 : 0;
}
int cuKernelSetAttribute(int which, int value, void *kernel, int device) {
  printf("attribute %d of %s on device %d: %d\n", which, (char *)kernel, device, value);
  return 0;
}
int cuLaunchKernelEx(const unsigned *config, void *kernel, void **arguments, void **extra) {
  (void)extra;
  if (!context)
    return 201;
  ANSWER(cuLaunchKernelEx);
  printf("launch %s, grid %u, block %u, smem %u, stream %p, first extent %d\n", (char *)kernel, config[0], config[3], config[6],
         *(void **)(config + 8), ((int **)arguments)[0][2]);
  return 0;
}
int cuStreamIsCapturing(void *stream, int *found) { (void)stream; *found = number("FAKE_CAPTURING", 0); return 0; }
int cuStreamSynchronize(void *stream) { (void)stream; puts("wait"); return 0; }
int cuThreadExchangeStreamCaptureMode(int *mode) { int old = *mode; *mode = 0; return (void)old, 0; }
int cuMemcpyDtoH_v2(void *target, void *source, size_t size) {
  memcpy(target, source, size);
  ((int *)target)[0] = number("FAKE_FAULT", 0);
  return 0;
}
int cuMemsetD8_v2(void *target, unsigned char byte, size_t size) { (void)target, (void)byte, (void)size; return 0; }
int cuPointerGetAttribute(int *found, int which, void *place) {
  (void)place;
  *found = number("FAKE_MEMORY", 0);
  return which == 2 && *found ? 0 : 1;
}
int cuGetErrorName(int status, const char **text) { *text = status == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR"; return 0; }
int cuGetErrorString(int status, const char **text) { (void)status; *text = "as the fake driver says"; return 0; }
int cuTensorMapEncodeTiled(void *map, int element, unsigned rank) {
  printf("map of rank %u, elements %d\n", rank, element);
  memset(map, 7, 128);
  return 0;
}
