/* Loads files that were exported, while it runs: an object from memory, an object and a library from files, and what is neither. */
#include "CuteDSLRuntime.h"

typedef struct {
  void *data;
  int32_t dynamic_shapes[2];
  int64_t dynamic_strides[1];
} matrix;

static unsigned char bytes[1 << 20];

static size_t read_file(const char *path) {
  FILE *file = fopen(path, "rb");
  size_t size = fread(bytes, 1, sizeof bytes, file);
  fclose(file);
  return size;
}

static void use(CuteDSLRT_Error_t loaded, CuteDSLRT_Module_t **made, const char *how) {
  CuteDSLRT_Module_t *module = *made;
  float x[8] = {0, 1, 2, 3, 4, 5, 6, 7}, y[8] = {0}, by = 3;
  matrix tx = {x, {2, 4}, {4}}, ty = {y, {2, 4}, {4}};
  void *stream = NULL;
  int32_t status = -1;
  void *arguments[5];
  CuteDSLRT_Function_t *function = NULL;
  CuteDSLRT_Error_t error;
  if (loaded) {
    printf("%s: %s\n", how, CuteDSLRT_Get_Error_Name(loaded));
    return;
  }
  arguments[0] = &tx, arguments[1] = &ty, arguments[2] = &by, arguments[3] = &stream, arguments[4] = &status;
  error = CuteDSLRT_Module_Get_Function(&function, module, "scala");
  printf("%s: %s, ", how, CuteDSLRT_Get_Error_String(error));
  error = CuteDSLRT_Module_Get_Function(&function, module, "scale");
  if (!error)
    error = CuteDSLRT_Function_Run(function, arguments, 5);
  printf("%d %d %g, ", error, status, y[7]);
  ty.dynamic_shapes[1] = 3;
  error = CuteDSLRT_Function_Run(function, arguments, 5);
  printf("%s %d, ", CuteDSLRT_Get_Error_Name(error), status);
  printf("%d\n", CuteDSLRT_Module_Destroy(module));
}

int main(int count, char **paths) {
  CuteDSLRT_Module_t *module = NULL;
  const char *libraries[1];
  size_t size = read_file(paths[1]), at;
  (void)count;
  use(CuteDSLRT_Module_Create_From_Bytes(&module, bytes, size, NULL, 0), &module, "bytes");
  use(CuteDSLRT_Module_Load(&module, paths[1]), &module, "object");
  use(CuteDSLRT_Module_Load(&module, paths[2]), &module, "library");
  libraries[0] = paths[2];
  use(CuteDSLRT_Module_Create_From_Bytes(&module, NULL, 0, libraries, 1), &module, "libraries");
  use(CuteDSLRT_Module_Create_From_Bytes(&module, NULL, 0, NULL, 0), &module, "nothing");
  use(CuteDSLRT_Module_Load(&module, "not there"), &module, "no file");
  use(CuteDSLRT_Module_Load(&module, paths[3]), &module, "text");
  for (at = 0; at < size; at += size / 100) { /* truncated anywhere: refused, and nothing crashes */
    CuteDSLRT_Error_t error = CuteDSLRT_Module_Create_From_Bytes(&module, bytes, at, NULL, 0);
    if (error != CuteDSLRT_Error_Damaged && error != CuteDSLRT_Error_Not_An_Object)
      printf("truncated after %d bytes: %d\n", (int)at, error);
  }
  bytes[18] = 8;
  use(CuteDSLRT_Module_Create_From_Bytes(&module, bytes, size, NULL, 0), &module, "machine");
  return 0;
}
