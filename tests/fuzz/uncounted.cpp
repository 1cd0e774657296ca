// tests/fuzz/uncounted.cpp: GCC calls this at each edge of the rooms where fuzz targets are built too (WEFT_FUZZ). What
// is no fuzz target is linked with it, and counts nothing.
extern "C" void __sanitizer_cov_trace_pc();
extern "C" void __sanitizer_cov_trace_pc() {}
