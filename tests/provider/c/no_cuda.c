/* Stands in for libcuda.so.1 and libcudart.so.12, as a machine without a device has them: what NIXL's plugin calls. */
enum { kNoDevice = 100, kInvalid = 1 };

int cuCtxSetCurrent(void* context) { return context == 0 ? kInvalid : kNoDevice; }
int cuDeviceGetPCIBusId(char* id, int length, int device) {
  if (length > 0) id[0] = '\0';
  return device < 0 ? kInvalid : kNoDevice;
}
int cuPointerGetAttributes(unsigned count, int* attributes, void** data, unsigned long long pointer) {
  (void)count, (void)attributes, (void)data, (void)pointer;
  return kInvalid;
}
int cudaSetDevice(int device) { return device < 0 ? kInvalid : kNoDevice; }
const char* cudaGetErrorString(int error) { return error == 0 ? "no error" : "no device"; }
