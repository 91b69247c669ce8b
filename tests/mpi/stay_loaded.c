/* LD_PRELOADed in tests with LeakSanitizer: dlclose does nothing, so that the stack traces of leaks in
 * unloaded MPI plugins still have the library names that lsan.supp matches. */
int dlclose(void *handle);
int dlclose(void *handle) { return handle == 0; }
