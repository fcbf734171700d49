/* Golden files: tests/golden/<lowering function>.golden.
 *
 *   == name of a case
 *   <a window, see trace/print.h>
 *   -- cpu
 *   <its programs in GOLDEN_SHORT form, see lower_window.h>
 *   -- cpu without kernels, tpu, cuda
 *   <their programs>
 *
 * The window is the input and written by people or by capture.py; the rest is output.
 */
#ifndef TPU_TESTS_GOLDEN_GOLDEN_FILE_H_
#define TPU_TESTS_GOLDEN_GOLDEN_FILE_H_

#include "base/strbuf.h"
#include "lower_window.h"

typedef struct golden_case_t {
  char* name;
  char* window;    // the lines of the window
  char* programs;  // the rest of the case
  int line;        // of `programs`, in the file
} golden_case_t;

/* Owns all it points at. */
typedef struct golden_file_t {
  char* path;
  golden_case_t* cases;
  size_t count, capacity;
} golden_file_t;

/* All of a file; NOT_FOUND when it cannot be opened. `out_text` is the caller's to free. */
TPU_MUST_USE tpu_status_t golden_read_text(const char* path, tpu_strbuf_t* out_text);
TPU_MUST_USE tpu_status_t golden_file_read(const char* path, golden_file_t* out_file);
void golden_file_free(golden_file_t* file);
/* What the case's programs are today. The error names file and case. */
TPU_MUST_USE tpu_status_t golden_case_lower(const golden_file_t* file, const golden_case_t* one,
                                            golden_form_t form, tpu_strbuf_t* out_programs);
/* Rewrites the file with the programs of today; leaves it alone when they are what it says. */
TPU_MUST_USE tpu_status_t golden_file_write(const golden_file_t* file, bool* out_changed);

/* Paths of the folder's *.golden files, sorted; each one and the array are freed with tpu_free. */
TPU_MUST_USE tpu_status_t golden_list(const char* folder, char*** out_paths, size_t* out_count);
void golden_list_free(char** paths, size_t count);

/* Appends the lines in which two texts differ, from the first to the last, "-" before those of
 * `expected`; `line` is the number of the first line. Equal texts append nothing. */
void golden_diff(const char* expected, const char* made, int line, tpu_strbuf_t* out_text);

#endif  // TPU_TESTS_GOLDEN_GOLDEN_FILE_H_
