/* What tests compare view plans by. */
#ifndef TPU_TESTS_CORE_VIEW_SUPPORT_H_
#define TPU_TESTS_CORE_VIEW_SUPPORT_H_

#include "ops/views.h"

/* True when the plans differ at most in their starts. */
bool same_structure(const tpu_view_plan_t* a, const tpu_view_plan_t* b);

#endif  // TPU_TESTS_CORE_VIEW_SUPPORT_H_
