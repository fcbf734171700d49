#include "base/version.h"

const char* tpu_version(void) { return TPU_VERSION; }
