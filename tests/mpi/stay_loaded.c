/* Preloaded where leaks are looked for: libraries stay loaded, so that what they keep until the end of the
 * process has the name that lsan.supp knows. */
int dlclose(void *handle);
int dlclose(void *handle) { return handle == 0; }
