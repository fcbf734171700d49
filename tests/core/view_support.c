#include "view_support.h"

#include <string.h>

static bool same_values(const int64_t* a, const int64_t* b, int count) {
  return memcmp(a, b, (size_t)count * sizeof(*a)) == 0;
}

bool same_structure(const tpu_view_plan_t* a, const tpu_view_plan_t* b) {
  if (a->kind != b->kind || a->transpose_base != b->transpose_base ||
      a->base_rank != b->base_rank || a->factor_count != b->factor_count ||
      a->slices != b->slices || a->whole != b->whole || a->kept_count != b->kept_count) {
    return false;
  }
  size_t rank_bytes = (size_t)a->base_rank * sizeof(*a->base_permutation);
  size_t kept_bytes = (size_t)a->kept_count * sizeof(*a->kept_dims);
  return memcmp(a->base_permutation, b->base_permutation, rank_bytes) == 0 &&
         memcmp(a->kept_dims, b->kept_dims, kept_bytes) == 0 &&
         same_values(a->kept, b->kept, a->kept_count) &&
         same_values(a->factors, b->factors, a->factor_count) &&
         same_values(a->counts, b->counts, a->factor_count) &&
         same_values(a->steps, b->steps, a->factor_count);
}
