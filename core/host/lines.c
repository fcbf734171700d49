#include "host/lines.h"

#include <string.h>

#include "host/scratch.h"

/* Lines copied together where they are strided, and the most memory such a block may take. */
enum { BLOCK_LINES = 16, BLOCK_BYTES = 1 << 20 };
/* Elements worth handing to another thread (about 50 us of sorting). */
enum { GRAIN_ELEMENTS = 8192 };

/* --- shapes --- */

static int64_t product_of(const int64_t* sizes, int first, int last) {
  int64_t count = 1;
  for (int i = first; i < last; ++i) count *= sizes[i];
  return count;
}

static tpu_status_t add_tensor(tpui_line_walk_t* walk, const tpu_host_buffer_t* first,
                               const tpu_host_buffer_t* buffer, int dim) {
  for (int i = 0; i < buffer->rank && buffer->rank == first->rank; ++i) {
    if (i == dim || buffer->sizes[i] == first->sizes[i]) continue;
    return tpu_status_make(TPU_INVALID_ARGUMENT, "dimension %d has sizes %lld and %lld", i,
                           (long long)first->sizes[i], (long long)buffer->sizes[i]);
  }
  if (buffer->rank != first->rank || walk->tensor_count == TPUI_MAX_LINE_TENSORS) {
    return tpu_status_make(TPU_INVALID_ARGUMENT, "tensors of %d and %d dimensions", first->rank,
                           buffer->rank);
  }
  walk->tensors[walk->tensor_count++] =
      (tpui_line_tensor_t){.data = buffer->data,
                           .length = buffer->rank == 0 ? 1 : buffer->sizes[dim],
                           .bytes = (int64_t)tpu_dtype_bytes(buffer->dtype)};
  return NULL;
}

tpu_status_t tpui_line_walk_init(const tpu_host_call_t* call, int64_t dim,
                                 tpui_line_walk_t* out_walk) {
  *out_walk = (tpui_line_walk_t){.operand_count = call->operand_count};
  const tpu_host_buffer_t* first = &call->operands[0];
  int rank = first->rank;
  if (dim < 0 || dim >= (rank > 0 ? rank : 1)) {
    return tpu_status_make(TPU_INVALID_ARGUMENT, "dimension %lld of a tensor with %d",
                           (long long)dim, rank);
  }
  out_walk->outer = rank > 0 ? product_of(first->sizes, 0, (int)dim) : 1;
  out_walk->inner = rank > 0 ? product_of(first->sizes, (int)dim + 1, rank) : 1;
  for (int i = 0; i < call->operand_count; ++i) {
    TPU_RETURN_IF_ERROR(add_tensor(out_walk, first, &call->operands[i], (int)dim));
  }
  for (int i = 0; i < call->result_count; ++i) {
    TPU_RETURN_IF_ERROR(add_tensor(out_walk, first, &call->results[i], (int)dim));
  }
  return NULL;
}

/* --- strided lines --- */

/* Copies `count` neighbouring lines between the tensor (row e at rows + e * row_bytes) and
 * contiguous lines. Loops are written per element size, so that the inner one is a plain move. */
#define COPY_BLOCK(type)                                                                    \
  static void copy_block_##type(char* rows, int64_t row_bytes, type* lines, int64_t length, \
                                int64_t count, bool into_lines) {                           \
    for (int64_t e = 0; e < length; ++e) {                                                  \
      type* row = (type*)(rows + e * row_bytes);                                            \
      for (int64_t i = 0; i < count; ++i) {                                                 \
        if (into_lines)                                                                     \
          lines[i * length + e] = row[i];                                                   \
        else                                                                                \
          row[i] = lines[i * length + e];                                                   \
      }                                                                                     \
    }                                                                                       \
  }
COPY_BLOCK(uint8_t)
COPY_BLOCK(uint16_t)
COPY_BLOCK(uint32_t)
COPY_BLOCK(uint64_t)

static void copy_block(const tpui_line_walk_t* walk, int t, int64_t first, void* lines,
                       int64_t count, bool into_lines) {
  const tpui_line_tensor_t* tensor = &walk->tensors[t];
  int64_t outer = first / walk->inner, inner = first % walk->inner;
  int64_t length = tensor->length, row_bytes = walk->inner * tensor->bytes;
  char* rows = (char*)tensor->data + outer * length * row_bytes + inner * tensor->bytes;
  switch (tensor->bytes) {
    case 1: copy_block_uint8_t(rows, row_bytes, lines, length, count, into_lines); break;
    case 2: copy_block_uint16_t(rows, row_bytes, lines, length, count, into_lines); break;
    case 4: copy_block_uint32_t(rows, row_bytes, lines, length, count, into_lines); break;
    default: copy_block_uint64_t(rows, row_bytes, lines, length, count, into_lines);
  }
}

/* Bytes of one line of each tensor, each rounded up so that the next one is aligned. */
static int64_t line_bytes(const tpui_line_walk_t* walk, int t) {
  return (walk->tensors[t].length * walk->tensors[t].bytes + 7) & ~INT64_C(7);
}

static int64_t block_lines(const tpui_line_walk_t* walk) {
  int64_t bytes = 8;
  for (int t = 0; t < walk->tensor_count; ++t) bytes += line_bytes(walk, t);
  int64_t lines = BLOCK_BYTES / bytes;
  return lines < 1 ? 1 : lines > BLOCK_LINES ? BLOCK_LINES : lines;
}

static tpu_status_t run_block(const tpui_line_walk_t* walk, int64_t first, int64_t count,
                              void* scratch, char* block, int64_t block_size) {
  char* parts[TPUI_MAX_LINE_TENSORS];
  for (int t = 0; t < walk->tensor_count; ++t) {
    parts[t] = block;
    block += line_bytes(walk, t) * block_size;
    if (t < walk->operand_count) copy_block(walk, t, first, parts[t], count, true);
  }
  for (int64_t k = 0; k < count; ++k) {
    void* lines[TPUI_MAX_LINE_TENSORS];
    for (int t = 0; t < walk->tensor_count; ++t) {
      lines[t] = parts[t] + k * walk->tensors[t].length * walk->tensors[t].bytes;
    }
    TPU_RETURN_IF_ERROR(walk->function(walk->arg, scratch, lines));
  }
  for (int t = walk->operand_count; t < walk->tensor_count; ++t) {
    copy_block(walk, t, first, parts[t], count, false);
  }
  return NULL;
}

static tpu_status_t run_strided(const tpui_line_walk_t* walk, int64_t first, int64_t last,
                                void* scratch) {
  int64_t size = block_lines(walk), bytes = 0;
  void* block = NULL;
  for (int t = 0; t < walk->tensor_count; ++t) bytes += line_bytes(walk, t) * size;
  TPU_RETURN_IF_ERROR(tpui_scratch_take((size_t)bytes, &block));
  tpu_status_t status = NULL;
  while (first < last && status == NULL) {
    int64_t count = walk->inner - first % walk->inner;  // up to the end of this outer index
    if (count > size) count = size;
    if (count > last - first) count = last - first;
    status = run_block(walk, first, count, scratch, block, size);
    first += count;
  }
  tpui_scratch_give(block);
  return status;
}

/* --- all lines --- */

static tpu_status_t run_contiguous(const tpui_line_walk_t* walk, int64_t first, int64_t last,
                                   void* scratch) {
  for (int64_t k = first; k < last; ++k) {
    void* lines[TPUI_MAX_LINE_TENSORS];
    for (int t = 0; t < walk->tensor_count; ++t) {
      const tpui_line_tensor_t* tensor = &walk->tensors[t];
      lines[t] = (char*)tensor->data + k * tensor->length * tensor->bytes;
    }
    TPU_RETURN_IF_ERROR(walk->function(walk->arg, scratch, lines));
  }
  return NULL;
}

static tpu_status_t run_range(void* arg, int64_t first, int64_t last) {
  const tpui_line_walk_t* walk = arg;
  void* scratch = NULL;
  TPU_RETURN_IF_ERROR(tpui_scratch_take(walk->scratch_bytes, &scratch));
  tpu_status_t status = walk->inner == 1 ? run_contiguous(walk, first, last, scratch)
                                         : run_strided(walk, first, last, scratch);
  tpui_scratch_give(scratch);
  return status;
}

tpu_status_t tpui_line_walk_run(const tpu_host_call_t* call, tpui_line_walk_t* walk) {
  int64_t length = walk->tensors[0].length > 0 ? walk->tensors[0].length : 1;
  return tpu_host_parallel(call, walk->outer * walk->inner, GRAIN_ELEMENTS / length, run_range,
                           walk);
}
