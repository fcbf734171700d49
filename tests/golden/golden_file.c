#include "golden_file.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"

tpu_status_t golden_read_text(const char* path, tpu_strbuf_t* out_text) {
  char block[4096];
  FILE* file = fopen(path, "rb");
  if (file == NULL) return tpu_status_make(TPU_NOT_FOUND, "cannot open %s", path);
  for (size_t size; (size = fread(block, 1, sizeof(block), file)) > 0;) {
    tpu_strbuf_append_bytes(out_text, block, size);
  }
  (void)fclose(file);
  return tpu_strbuf_status(out_text);
}

static tpu_status_t copy_text(const char* text, size_t size, char** out_copy) {
  TPU_RETURN_IF_ERROR(tpu_calloc(size + 1, 1, (void**)out_copy));
  memcpy(*out_copy, text, size);
  return NULL;
}

/* --- cases --- */

static bool starts_with(const char* text, const char* start) {
  return strncmp(text, start, strlen(start)) == 0;
}

static size_t line_size(const char* at) {
  size_t size = strcspn(at, "\n");
  return at[size] == '\n' ? size + 1 : size;
}

/* The lines from `*at` up to one that starts with `stop` or the other; counts them. */
static size_t section_size(const char* at, const char* stop, const char* other, int* inout_line) {
  size_t size = 0;
  while (at[size] != '\0' && !starts_with(at + size, stop) && !starts_with(at + size, other)) {
    size += line_size(at + size);
    ++*inout_line;
  }
  return size;
}

static tpu_status_t add_case(golden_file_t* file, golden_case_t** out_case) {
  TPU_RETURN_IF_ERROR(
      tpu_grow((void**)&file->cases, &file->capacity, file->count + 1, sizeof(**out_case)));
  *out_case = &file->cases[file->count++];
  **out_case = (golden_case_t){0};
  return NULL;
}

static tpu_status_t read_cases(golden_file_t* file, const char* text) {
  int line = 1;
  for (const char* at = text; *at != '\0';) {
    golden_case_t* one = NULL;
    if (!starts_with(at, "== ")) {
      return tpu_status_make(TPU_INVALID_ARGUMENT, "%s:%d: expected \"== name\"", file->path, line);
    }
    TPU_RETURN_IF_ERROR(add_case(file, &one));
    TPU_RETURN_IF_ERROR(copy_text(at + 3, strcspn(at + 3, "\n"), &one->name));
    at += line_size(at);
    ++line;
    size_t size = section_size(at, "== ", "-- cpu", &line);
    TPU_RETURN_IF_ERROR(copy_text(at, size, &one->window));
    at += size;
    one->line = line;
    size = section_size(at, "== ", "== ", &line);
    TPU_RETURN_IF_ERROR(copy_text(at, size, &one->programs));
    at += size;
  }
  return NULL;
}

tpu_status_t golden_file_read(const char* path, golden_file_t* out_file) {
  *out_file = (golden_file_t){0};
  tpu_strbuf_t text = {0};
  tpu_status_t status = golden_read_text(path, &text);
  if (status == NULL) status = copy_text(path, strlen(path), &out_file->path);
  if (status == NULL) status = read_cases(out_file, tpu_strbuf_text(&text));
  tpu_strbuf_free(&text);
  if (status != NULL) golden_file_free(out_file);
  return status;
}

void golden_file_free(golden_file_t* file) {
  for (size_t i = 0; i < file->count; ++i) {
    tpu_free(file->cases[i].name);
    tpu_free(file->cases[i].window);
    tpu_free(file->cases[i].programs);
  }
  tpu_free(file->path);
  tpu_free(file->cases);
  *file = (golden_file_t){0};
}

/* The reading again as text must give the same window: else a case would test something else. */
static tpu_status_t check_round_trip(const golden_window_t* window, const char* text) {
  tpu_strbuf_t again = {0};
  golden_window_print(window, &again);
  tpu_status_t status = tpu_strbuf_status(&again);
  if (status == NULL && strcmp(tpu_strbuf_text(&again), text) != 0) {
    tpu_strbuf_t diff = {0};
    golden_diff(text, tpu_strbuf_text(&again), 1, &diff);
    status = tpu_status_make(TPU_INVALID_ARGUMENT, "the window prints differently:\n%s",
                             tpu_strbuf_text(&diff));
    tpu_strbuf_free(&diff);
  }
  tpu_strbuf_free(&again);
  return status;
}

tpu_status_t golden_case_lower(const golden_file_t* file, const golden_case_t* one,
                               golden_form_t form, tpu_strbuf_t* out_programs) {
  golden_window_t window;
  tpu_status_t status = golden_window_read(one->window, &window);
  if (status == NULL) status = check_round_trip(&window, one->window);
  if (status == NULL) status = golden_lower_all(&window, form, out_programs);
  golden_window_free(&window);
  return tpu_status_annotate(status, "%s: case \"%s\"", file->path, one->name);
}

tpu_status_t golden_file_write(const golden_file_t* file, bool* out_changed) {
  tpu_strbuf_t text = {0}, old = {0};
  tpu_status_t status = NULL;
  *out_changed = false;
  for (size_t i = 0; i < file->count && status == NULL; ++i) {
    tpu_strbuf_printf(&text, "== %s\n%s", file->cases[i].name, file->cases[i].window);
    status = golden_case_lower(file, &file->cases[i], GOLDEN_SHORT, &text);
  }
  if (status == NULL) status = tpu_strbuf_status(&text);
  if (status == NULL) status = golden_read_text(file->path, &old);
  if (status == NULL && strcmp(tpu_strbuf_text(&old), tpu_strbuf_text(&text)) != 0) {
    FILE* out = fopen(file->path, "wb");
    bool written = out != NULL && fwrite(text.data, 1, text.size, out) == text.size;
    if (out != NULL) written = fclose(out) == 0 && written;
    if (!written) status = tpu_status_make(TPU_UNAVAILABLE, "cannot write %s", file->path);
    *out_changed = written;
  }
  tpu_strbuf_free(&text);
  tpu_strbuf_free(&old);
  return status;
}

/* --- the folder --- */

static int by_text(const void* a, const void* b) {
  return strcmp(*(char* const*)a, *(char* const*)b);
}

static bool is_golden(const char* name) {
  const char* dot = strrchr(name, '.');
  return dot != NULL && strcmp(dot, ".golden") == 0;
}

static tpu_status_t add_path(const char* folder, const char* name, char*** paths, size_t* count,
                             size_t* capacity) {
  tpu_strbuf_t path = {0};
  tpu_strbuf_printf(&path, "%s/%s", folder, name);
  tpu_status_t status = tpu_strbuf_status(&path);
  if (status == NULL) status = tpu_grow((void**)paths, capacity, *count + 1, sizeof(char*));
  if (status == NULL) status = copy_text(tpu_strbuf_text(&path), path.size, &(*paths)[*count]);
  if (status == NULL) ++*count;
  tpu_strbuf_free(&path);
  return status;
}

tpu_status_t golden_list(const char* folder, char*** out_paths, size_t* out_count) {
  size_t capacity = 0;
  tpu_status_t status = NULL;
  *out_paths = NULL;
  *out_count = 0;
  DIR* open = opendir(folder);
  if (open == NULL) return tpu_status_make(TPU_NOT_FOUND, "no folder %s", folder);
  for (struct dirent* entry; status == NULL && (entry = readdir(open)) != NULL;) {
    if (!is_golden(entry->d_name)) continue;
    status = add_path(folder, entry->d_name, out_paths, out_count, &capacity);
  }
  (void)closedir(open);
  if (*out_count > 0) qsort(*out_paths, *out_count, sizeof(char*), by_text);
  return status;
}

void golden_list_free(char** paths, size_t count) {
  for (size_t i = 0; i < count; ++i) tpu_free(paths[i]);
  tpu_free(paths);
}

/* --- differences --- */

#define SHOWN_LINES 40
#define CONTEXT_LINES 3

static void append_lines(tpu_strbuf_t* text, char mark, const char* from, const char* end) {
  int shown = 0;
  for (const char* at = from; at < end; at += line_size(at)) {
    if (++shown > SHOWN_LINES) {
      tpu_strbuf_printf(text, "%c ...\n", mark);
      return;
    }
    tpu_strbuf_append_bytes(text, &mark, 1);
    tpu_strbuf_append_bytes(text, at, strcspn(at, "\n"));
    tpu_strbuf_append(text, "\n");
  }
}

/* Goes back so many lines, not before `from`. */
static const char* lines_before(const char* at, const char* from, int count) {
  while (at > from && count-- > 0) {
    --at;
    while (at > from && at[-1] != '\n') --at;
  }
  return at;
}

void golden_diff(const char* expected, const char* made, int line, tpu_strbuf_t* out_text) {
  const char *a = expected, *b = made;
  while (*a != '\0' && line_size(a) == line_size(b) && memcmp(a, b, line_size(a)) == 0) {
    size_t size = line_size(a);
    a += size;
    b += size;
    ++line;
  }
  if (*a == '\0' && *b == '\0') return;
  const char *a_end = a + strlen(a), *b_end = b + strlen(b);
  for (;;) {  // whole lines that both end with
    const char* a_last = lines_before(a_end, a, 1);
    const char* b_last = lines_before(b_end, b, 1);
    size_t size = (size_t)(a_end - a_last);
    if (size == 0 || size != (size_t)(b_end - b_last) || memcmp(a_last, b_last, size) != 0) break;
    a_end = a_last;
    b_end = b_last;
  }
  tpu_strbuf_printf(out_text, "@@ line %d @@\n", line);
  append_lines(out_text, ' ', lines_before(a, expected, CONTEXT_LINES), a);
  append_lines(out_text, '-', a, a_end);
  append_lines(out_text, '+', b, b_end);
}
