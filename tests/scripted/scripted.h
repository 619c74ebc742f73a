// scripted.h - a libcuda that computes nothing: it answers as a test tells it to, and counts.
//
// Built as $(BUILD)/scripted/libcuda.so.1 from driver.cpp.  A test that has opened it through
// FA3PTX_LIBCUDA gets at its state by dlsym "scripted".
#pragma once
#include <cuda.h>

#include <atomic>

struct Scripted {
  CUresult init, context, attribute, load, get_kernel, get_function, set_attribute, encode, memset,
      launch;             // what each call answers; CUDA_SUCCESS at first
  int device;             // of the current context
  int capability[2];      // of devices 0 and 1: 90 at first
  int multiprocessors[2]; // 132
  std::atomic<int> loads, attributes_set, functions, encodes, memsets, launches;
  size_t param_size;      // > 0: the launches below are kept
  CUlaunchConfig last;    // the last launch
  unsigned char params[4096]; // what its parameter pointed to, param_size bytes
};
