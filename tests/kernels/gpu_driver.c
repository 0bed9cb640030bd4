// What compilers ask of NVIDIA's driver before they compile: which GPU there is. Nothing can be run on it.
#include <stdlib.h>

enum { kMajor = 75, kMinor = 76 };  // of CUdevice_attribute

static int capability(void) { return atoi(getenv("GPU_CAPABILITY")); }

int cuCtxGetDevice(int* device) {
  *device = 0;
  return 0;
}

int cuDeviceGetAttribute(int* value, int attribute, int device) {
  (void)device;
  *value = attribute == kMajor ? capability() / 10 : attribute == kMinor ? capability() % 10 : 0;
  return 0;
}

int cuCtxGetCurrent(void** context) {
  *context = (void*)1;
  return 0;
}

// A compiled kernel is handed to the driver, which keeps it here without looking at it.
int cuModuleLoadData(void** module, const void* image) {
  *module = (void*)image;
  return 0;
}

int cuModuleGetFunction(void** function, void* module, const char* name) {
  (void)name;
  *function = module;
  return 0;
}

int cuFuncSetAttribute(void* function, int attribute, int value) {
  (void)function, (void)attribute, (void)value;
  return 0;
}
