/* Controlling the fake PJRT plugin from a test.
 *
 * The fake plugin implements the calls in core/pjrt/pjrt_calls.def. It compiles nothing: outputs of
 * a run are zero-filled buffers with the result types of the program's @main. What it does do:
 *  - checks every struct's size, every handle (NULL, wrong kind, used after destruction) and reads
 *    of content that nobody waited for. What it finds are "violations": counted, printed on stderr,
 *    and turned into exit status 97 when the process ends normally;
 *  - fails the n-th call, or all calls of a name;
 *  - delays content, loses it, or makes runs fail after they were accepted;
 *  - counts what is alive.
 *
 * Given CPU create options it behaves as a CPU plugin; without options as a TPU: one device "TPU
 * fake" with a memory limit and without host pointers.
 *
 * Environment, read when the plugin is loaded: FAKE_PLUGIN_FAIL_AT=n, FAKE_PLUGIN_FAIL_CALL=name
 * (without "PJRT_"), FAKE_PLUGIN_DELAY_US=n, FAKE_PLUGIN_CHECK_LEAKS=1 (objects alive at the end
 * are violations).
 */
#ifndef TPU_TESTS_FAKE_PLUGIN_FAKE_PLUGIN_H_
#define TPU_TESTS_FAKE_PLUGIN_FAKE_PLUGIN_H_

#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fake_stats_t {
  int64_t calls;  // that can fail
  int64_t violations;
  int64_t compiles, loads, executions;
  int64_t other_shapes;  // arguments of the right size but another dtype or shape than declared
  int64_t live_clients, live_buffers, live_events, live_executables, live_loaded, live_errors,
      live_serialized;
} fake_stats_t;

typedef struct fake_control_t {
  /* Switches everything below off and sets the counters (not the live ones) to zero. */
  void (*reset)(void);
  void (*stats)(fake_stats_t* out_stats);
  /* Sum of all live objects. */
  int64_t (*live)(void);
  /* The n-th call from now fails with `code` (a PJRT error code); 0 switches it off. Destroying
   * calls do their work and report an error. */
  void (*fail_at)(int64_t n, int code);
  /* True while fail_at has not struck yet. */
  bool (*fail_pending)(void);
  /* All calls of this name (without "PJRT_") fail; NULL: none. */
  void (*fail_call)(const char* name, int code);
  /* Content of buffers made from now on is ready this many microseconds later. */
  void (*delay)(int64_t microseconds);
  /* Events of buffers made from now on never come; waiting gives up with DEADLINE_EXCEEDED after
   * this many microseconds. 0: off. */
  void (*lose)(int64_t microseconds);
  /* Runs are accepted, but waiting for their outputs gives this error; 0: off. */
  void (*fail_outputs)(int code);
  /* Runs fail with this error after they have taken what is donated to them; 0: off. */
  void (*fail_taking)(int code);
  /* Runs wait at their beginning while this is on. */
  void (*hold)(bool on);
  /* Programs compiled from now on say that they need this many bytes while they run. */
  void (*temporaries)(int64_t bytes);
  /* Compile refuses this option ("No such compile option"); NULL: none. */
  void (*refuse_option)(const char* name);
  /* The table shown by the next plugin load in this process: version and size in bytes. */
  void (*set_version)(int major, int minor, size_t struct_size);
} fake_control_t;

/* Exported by the plugin. */
const fake_control_t* fake_plugin_get_control(void);

/* Path of the plugin: FAKE_PLUGIN_PATH, else where CMake puts it beside the test program. */
static inline const char* fake_plugin_path(void) {
  static char path[4096];
  const char* given = getenv("FAKE_PLUGIN_PATH");
  if (given != NULL) return given;
  ssize_t size = readlink("/proc/self/exe", path, sizeof(path) - 64);
  if (size <= 0) return "";
  path[size] = '\0';
  char* slash = strrchr(path, '/');
  (void)snprintf(slash, 64, "/../fake_plugin/libtpu_fake_plugin.so");
  return path;
}

/* NULL when the plugin is not there. */
static inline const fake_control_t* fake_plugin_control(void) {
  void* library = dlopen(fake_plugin_path(), RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) return NULL;
  const fake_control_t* (*get)(void) = NULL;
  *(void**)&get = dlsym(library, "fake_plugin_get_control");
  return get != NULL ? get() : NULL;
}

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // TPU_TESTS_FAKE_PLUGIN_FAKE_PLUGIN_H_
