/* The lowering as a command: windows in, programs out, no plugin and no PyTorch.
 *
 *   tpu_golden write FOLDER   rewrites the programs in the folder's golden files
 *   tpu_golden print FOLDER   prints all cases with their programs of today, in full
 *   tpu_golden blocks FOLDER  the same, with the lowering's blocks that ran (blocks.h) before each
 *   tpu_golden lower FILE     prints the programs of one window (trace/print.h has the form)
 *   tpu_golden table          prints operation, lowering, "internal" or "aten", op_db entries
 */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "blocks.h"
#include "golden_file.h"
#include "ops/op_ids.h"

static tpu_status_t write_file(const golden_file_t* file) {
  bool changed = false;
  TPU_RETURN_IF_ERROR(golden_file_write(file, &changed));
  if (changed) printf("rewrote %s\n", file->path);
  return NULL;
}

static bool tell_blocks;

/* A case that cannot be read (an older tree lacks its operation) is said, and passed over. */
static tpu_status_t print_file(const golden_file_t* file) {
  const char* name = strrchr(file->path, '/') + 1;
  for (size_t i = 0; i < file->count; ++i) {
    tpu_strbuf_t programs = {0};
    golden_blocks_reset();
    tpu_status_t status = golden_case_lower(file, &file->cases[i], GOLDEN_FULL, &programs);
    printf("== %s %s\n", name, file->cases[i].name);
    if (tell_blocks) golden_blocks_print(stdout);
    if (status == NULL) {
      fputs(tpu_strbuf_text(&programs), stdout);
    } else {
      printf("error: %s\n", tpu_status_message(status));
    }
    tpu_status_free(status);
    tpu_strbuf_free(&programs);
  }
  return NULL;
}

static tpu_status_t for_each_file(const char* folder, tpu_status_t (*work)(const golden_file_t*)) {
  char** paths = NULL;
  size_t count = 0;
  tpu_status_t status = golden_list(folder, &paths, &count);
  for (size_t i = 0; i < count && status == NULL; ++i) {
    golden_file_t file;
    status = golden_file_read(paths[i], &file);
    if (status == NULL) status = work(&file);
    golden_file_free(&file);
  }
  golden_list_free(paths, count);
  return status;
}

static tpu_status_t lower_file(const char* path) {
  tpu_strbuf_t text = {0}, programs = {0};
  golden_window_t window = {0};
  tpu_status_t status = golden_read_text(path, &text);
  if (status == NULL) status = golden_window_read(tpu_strbuf_text(&text), &window);
  if (status == NULL) status = golden_lower_all(&window, GOLDEN_FULL, &programs);
  if (status == NULL) fputs(tpu_strbuf_text(&programs), stdout);
  golden_window_free(&window);
  tpu_strbuf_free(&text);
  tpu_strbuf_free(&programs);
  return status;
}

static tpu_status_t print_table(void) {
  for (tpu_op_t op = 1; op < TPU_OP_COUNT; ++op) {
    const tpu_op_info_t* info = tpu_op_info(op);
    printf("%s %s %s %s\n", info->name, golden_lowering_name(op),
           info->flags & TPU_OP_INTERNAL ? "internal" : "aten", info->opinfo);
  }
  return NULL;
}

int main(int argc, char** argv) {
  tpu_status_t status;
  if (argc == 3 && strcmp(argv[1], "write") == 0) {
    status = for_each_file(argv[2], write_file);
  } else if (argc == 3 && (strcmp(argv[1], "print") == 0 || strcmp(argv[1], "blocks") == 0)) {
    tell_blocks = argv[1][0] == 'b';
    status = for_each_file(argv[2], print_file);
  } else if (argc == 3 && strcmp(argv[1], "lower") == 0) {
    status = lower_file(argv[2]);
  } else if (argc == 2 && strcmp(argv[1], "table") == 0) {
    status = print_table();
  } else {
    fprintf(stderr, "usage: %s write FOLDER | print FOLDER | blocks FOLDER | lower FILE | table\n",
            argv[0]);
    return 2;
  }
  if (status != NULL) fprintf(stderr, "%s\n", tpu_status_message(status));
  bool failed = status != NULL;
  tpu_status_free(status);
  return failed ? 1 : 0;
}
