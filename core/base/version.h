/* The version of the package, which torch_tpu/_version.py says and the build passes on. */
#ifndef TPU_BASE_VERSION_H_
#define TPU_BASE_VERSION_H_

#ifdef __cplusplus
extern "C" {
#endif

/* For example "0.1.0"; a literal. Part of every compile cache key. */
const char* tpu_version(void);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // TPU_BASE_VERSION_H_
