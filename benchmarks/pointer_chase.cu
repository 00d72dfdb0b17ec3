// Latency of one dependent load, from L2 and from DRAM: what glqprof/analysis/ncu_in_flight.py assumes without load.
// nvcc -O3 -arch=native -o chase benchmarks/pointer_chase.cu && ./chase
//
// One thread follows a random cycle through lines 128 bytes apart, past L1 (ld.global.cg). The first footprint fits in
// L2 and is walked once before; the second is far larger than L2.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <vector>

constexpr size_t kLineBytes = 128;

__global__ void chase(const unsigned* next, unsigned start, int steps, unsigned* end, long long* cycles) {
  unsigned at = start;
  const long long begin = clock64();
  for (int i = 0; i < steps; ++i) at = __ldcg(next + static_cast<size_t>(at) * (kLineBytes / sizeof(unsigned)));
  *cycles = clock64() - begin;
  *end = at;
}

static void check(cudaError_t status) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "%s\n", cudaGetErrorString(status));
  std::exit(1);
}

static void measure(const char* level, size_t bytes, bool walk_before) {
  const unsigned lines = static_cast<unsigned>(bytes / kLineBytes);
  std::vector<unsigned> order(lines);
  std::iota(order.begin(), order.end(), 0u);
  std::shuffle(order.begin(), order.end(), std::mt19937(1));
  std::vector<unsigned> next(bytes / sizeof(unsigned));
  for (unsigned i = 0; i < lines; ++i) next[static_cast<size_t>(order[i]) * (kLineBytes / sizeof(unsigned))] = order[(i + 1) % lines];
  unsigned *device = nullptr, *end = nullptr;
  long long* cycles = nullptr;
  check(cudaMalloc(&device, bytes));
  check(cudaMalloc(&end, sizeof(unsigned)));
  check(cudaMalloc(&cycles, sizeof(long long)));
  check(cudaMemcpy(device, next.data(), bytes, cudaMemcpyHostToDevice));
  if (walk_before) {
    chase<<<1, 1>>>(device, order[0], static_cast<int>(lines), end, cycles);
  } else {  // push the copy out of L2 by walking elsewhere on the same cycle
    chase<<<1, 1>>>(device, order[lines / 2], 2'000'000, end, cycles);
  }
  check(cudaDeviceSynchronize());
  constexpr int kSteps = 20'000;
  for (int repeat = 0; repeat < 3; ++repeat) {
    const unsigned start = order[walk_before ? 0 : static_cast<size_t>(repeat) * lines / 8];
    cudaEvent_t first, last;
    check(cudaEventCreate(&first));
    check(cudaEventCreate(&last));
    check(cudaEventRecord(first));
    chase<<<1, 1>>>(device, start, kSteps, end, cycles);
    check(cudaEventRecord(last));
    check(cudaEventSynchronize(last));
    float ms = 0;
    long long taken = 0;
    check(cudaEventElapsedTime(&ms, first, last));
    check(cudaMemcpy(&taken, cycles, sizeof taken, cudaMemcpyDeviceToHost));
    std::printf("%s,%zu,%.1f,%.1f\n", level, bytes, static_cast<double>(taken) / kSteps, ms * 1e6 / kSteps);
  }
  check(cudaFree(device));
  check(cudaFree(end));
  check(cudaFree(cycles));
}

int main() {
  std::printf("level,bytes,cycles_per_load,ns_per_load\n");
  measure("L2", size_t{8} << 20, true);
  measure("DRAM", size_t{2} << 30, false);
  return 0;
}
