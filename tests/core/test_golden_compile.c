/* Golden programs are valid StableHLO: a real compiler takes them. Every 25th of them, all with
 * TORCH_TPU_TEST_ALL=1 (a minute). */
#include <stdlib.h>
#include <string.h>

#include "base/env.h"
#include "compile/compile.h"
#include "engine/engine.h"
#include "golden_file.h"
#include "test.h"

#define STRIDE 25

typedef struct compile_world_t {
  tpu_engine_t* engine;
  tpu_compiler_t* compiler;
  int stride, seen, compiled;
} compile_world_t;

static bool open_world(compile_world_t* w, const char* plugin) {
  tpu_device_options_t options = {.plugin_path = plugin};
  *w = (compile_world_t){.stride = getenv("TORCH_TPU_TEST_ALL") != NULL ? 1 : STRIDE};
  TPU_EXPECT_OK(tpu_env_override(TPU_ENV_CACHE, "0"));
  TPU_EXPECT_OK(tpu_engine_create(&options, &w->engine));
  if (w->engine == NULL) return false;
  TPU_EXPECT_OK(tpu_compiler_create(tpu_engine_device(w->engine), &w->compiler));
  return w->compiler != NULL;
}

static void close_world(compile_world_t* w) {
  tpu_compiler_destroy(w->compiler);
  tpu_engine_destroy(w->engine);
  TPU_EXPECT_OK(tpu_env_override(TPU_ENV_CACHE, NULL));
}

static void compile_text(compile_world_t* w, const golden_file_t* file, const golden_case_t* one,
                         const char* text, size_t size) {
  tpu_compile_options_t options = {.small = true};
  tpu_executable_t* executable = NULL;
  tpu_status_t status = tpu_compiler_get(w->compiler, text, size, &options, &executable);
  // A valid program for another platform; libtpu compiles all of those (make tpu-compile).
  bool foreign = status != NULL && strstr(tpu_status_message(status), "XLA:CPU ThunkEmitter");
  if (status != NULL && !foreign) {
    tpu_test_fail(file->path, one->line, "case \"%s\" does not compile: %s", one->name,
                  tpu_status_message(status));
  }
  tpu_status_free(status);
  tpu_executable_release(executable);
  ++w->compiled;
}

/* The programs of both platforms; texts that they share are found in memory. */
static void compile_case(compile_world_t* w, const golden_file_t* file, const golden_case_t* one) {
  static const char begin[] = "module @tpu {", end[] = "\n}\n}\n";
  tpu_strbuf_t programs = {0};
  TPU_EXPECT_OK(golden_case_lower(file, one, GOLDEN_FULL, &programs));
  const char* at = tpu_strbuf_text(&programs);
  while ((at = strstr(at, begin)) != NULL) {
    const char* last = strstr(at, end);
    if (last == NULL) break;
    last += sizeof(end) - 1;
    compile_text(w, file, one, at, (size_t)(last - at));
    at = last;
  }
  tpu_strbuf_free(&programs);
}

TPU_TEST(golden_programs_compile) {
  const char* plugin = getenv("TORCH_TPU_PJRT_PLUGIN");
  if (plugin == NULL) {
    tpu_test_skip("TORCH_TPU_PJRT_PLUGIN is not set");
    return;
  }
  compile_world_t world;
  char** paths = NULL;
  size_t count = 0;
  if (open_world(&world, plugin)) {
    TPU_EXPECT_OK(golden_list(TPU_GOLDEN_FOLDER, &paths, &count));
  }
  for (size_t i = 0; i < count; ++i) {
    golden_file_t file;
    TPU_EXPECT_OK(golden_file_read(paths[i], &file));
    for (size_t k = 0; k < file.count; ++k) {
      if (world.seen++ % world.stride == 0) compile_case(&world, &file, &file.cases[k]);
    }
    golden_file_free(&file);
  }
  TPU_EXPECT(world.compiled >= world.seen / world.stride);
  golden_list_free(paths, count);
  close_world(&world);
}
