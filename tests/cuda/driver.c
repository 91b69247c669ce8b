/* A stand-in for libcuda.so.1, NVIDIA's driver, on a host without a GPU. cuDNN makes plans for a described
 * device only if it finds a driver with these functions. It asks for the driver's version and for the number
 * of devices, which is 0. */

/* clang-format off */
#define NEVER_CALLED(X) \
    X(cuCtxGetCurrent) X(cuCtxGetLimit) X(cuCtxPopCurrent) X(cuCtxPushCurrent) X(cuDeviceGet) \
    X(cuGetErrorName) X(cuGetErrorString) X(cuKernelGetAttribute) X(cuKernelSetAttribute) \
    X(cuLaunchCooperativeKernel) X(cuLaunchKernel) X(cuLaunchKernelEx) X(cuLibraryGetKernel) \
    X(cuLibraryLoadData) X(cuLibraryLoadFromFile) X(cuLibraryUnload) X(cuLinkAddData) X(cuLinkComplete) \
    X(cuLinkCreate) X(cuLinkDestroy) X(cuOccupancyMaxPotentialClusterSize) X(cuStreamGetCtx)
/* clang-format on */

enum { NO_DEVICE = 100, VERSION = 13000 };

#define REFUSE(name)                                                                                         \
    int name(void);                                                                                          \
    int name(void) { return NO_DEVICE; }
NEVER_CALLED(REFUSE)
REFUSE(cuInit)

int cuDriverGetVersion(int *version);
int cuDriverGetVersion(int *version)
{
    *version = VERSION;
    return 0;
}

int cuDeviceGetCount(int *count);
int cuDeviceGetCount(int *count)
{
    *count = 0;
    return 0;
}
